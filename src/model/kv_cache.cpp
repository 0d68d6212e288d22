#include "model/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/check.h"

namespace troupe::model {

namespace {

constexpr std::int64_t kHeadStep = 16;     // of kernels/attention.h
constexpr std::int64_t kHeadDimMax = 256;  // of kernels/attention.h

std::int64_t entries_per_page(const CacheShape& shape, int page_tokens) {
  return shape.ratio == 0 ? 0 : (page_tokens + shape.ratio - 1) / shape.ratio;
}

/// Numbers of 32 bits that the keys (or the values) of `tokens` tokens take.
std::int64_t words_of_heads(const CacheShape& shape, std::int64_t tokens, kernels::Precision precision) {
  return shape.head_floats * tokens / (precision == kernels::Precision::kBfloat16 ? 2 : 1);
}

std::int64_t page_floats(const CacheShape& shape, int page_tokens, kernels::Precision precision) {
  return 2 * words_of_heads(shape, page_tokens, precision) + shape.row_floats * page_tokens +
         entries_per_page(shape, page_tokens) * shape.entry_floats;
}

CacheShape compressed_shape(const AttentionSpec& a) {
  const CompressSpec& c = a.compress;
  CacheShape shape;
  shape.row_floats = a.head_dim;
  shape.ratio = c.ratio;
  if (c.ratio == 0) return shape;
  const bool indexed = c.index_top > 0;
  const std::int64_t halves = c.overlap ? 2 : 1;
  shape.entry_floats = a.head_dim + (indexed ? c.index_dim : 0);
  shape.state_floats = halves * c.ratio * 2 * halves * (a.head_dim + (indexed ? c.index_dim : 0));
  return shape;
}

}  // namespace

bool uses_head_pages(const AttentionSpec& a) {
  return a.kind == AttentionKind::kGroupedQuery && a.window == 0 && !a.sinks && a.head_dim % kHeadStep == 0 &&
         a.head_dim <= kHeadDimMax;
}

CacheShape cache_of(const AttentionSpec& a) {
  CacheShape shape;
  switch (a.kind) {
    case AttentionKind::kGroupedQuery:
      (uses_head_pages(a) ? shape.head_floats : shape.row_floats) =
          a.kv_heads * a.head_dim * (uses_head_pages(a) ? 1 : 2);
      return shape;
    case AttentionKind::kLatent:
      shape.row_floats = a.latent.kv_rank + a.latent.rope_dim;
      return shape;
    case AttentionKind::kDeltaNet: {
      const DeltaSpec& d = a.delta;
      shape.state_floats = (d.taps - 1) * d.channels() + d.value_heads * d.key_dim * d.value_dim;
      return shape;
    }
    case AttentionKind::kCompressed:
      return compressed_shape(a);
  }
  return shape;
}

double bytes_per_token(const CacheShape& shape, kernels::Precision precision) {
  const double heads = static_cast<double>(words_of_heads(shape, 2, precision));  // of two tokens' keys: one's keys and values
  const double entries = shape.ratio == 0 ? 0 : static_cast<double>(shape.entry_floats) / static_cast<double>(shape.ratio);
  return (heads + static_cast<double>(shape.row_floats) + entries) * static_cast<double>(sizeof(float));
}

bool can_guess(const ModelSpec& spec, std::size_t block) {
  return block < spec.mtp.size() && cache_of(spec.mtp[block].attention).state_floats == 0;
}

namespace {

std::vector<const LayerSpec*> cached_layers(const ModelSpec& spec, bool further) {
  std::vector<const LayerSpec*> layers;
  for (const LayerSpec& layer : spec.layers) layers.push_back(&layer);
  for (const LayerSpec& layer : spec.mtp)
    if (further) layers.push_back(&layer);
  return layers;
}

}  // namespace

void KvCache::Unmap::operator()(float* memory) const { ::munmap(memory, bytes); }

std::int64_t KvCache::bytes_per_page(const ModelSpec& spec, int page_tokens, bool further, kernels::Precision precision) {
  std::int64_t floats = 0;
  for (const LayerSpec* layer : cached_layers(spec, further))
    floats += page_floats(cache_of(layer->attention), page_tokens, precision);
  return floats * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t KvCache::bytes_per_state(const ModelSpec& spec) {
  std::int64_t floats = 0;
  for (const LayerSpec& layer : spec.layers) floats += 2 * cache_of(layer.attention).state_floats;
  return floats * static_cast<std::int64_t>(sizeof(float));
}

KvCache::KvCache(const ModelSpec& spec, int pages, int page_tokens, int states, bool further, kernels::Precision precision)
    : pages_(pages),
      page_tokens_(page_tokens),
      states_(states),
      precision_(precision),
      turns_(static_cast<std::size_t>(states)) {
  TROUPE_CHECK(pages >= 1 && page_tokens >= 16 && page_tokens % 16 == 0, "a page holds a multiple of 16 tokens");
  std::int64_t offset = 0;
  for (const LayerSpec* layer : cached_layers(spec, further)) {
    const CacheShape shape = cache_of(layer->attention);
    const std::int64_t floats = page_floats(shape, page_tokens, precision);
    layers_.push_back({shape, floats, offset, state_floats_});
    offset += floats * pages;
    state_floats_ += shape.state_floats;
  }
  first_state_ = offset;
  bytes_ = std::max<std::int64_t>(offset + 2 * state_floats_ * states, 1) * static_cast<std::int64_t>(sizeof(float));
  const auto size = static_cast<std::size_t>(bytes_);
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TROUPE_CHECK(memory != MAP_FAILED, "no address space for the key-value cache");
  memory_ = std::unique_ptr<float, Unmap>(static_cast<float*>(memory), Unmap{size});
}

float* KvCache::start(int layer, int index) const {
  const Layer& place = layers_[static_cast<std::size_t>(layer)];
  return memory_.get() + place.offset + place.page_floats * index;
}

std::int64_t KvCache::head_words(int layer) const { return words_of_heads(shape(layer), page_tokens_, precision_); }

kernels::KvPage KvCache::page(int layer, int index) const {
  float* k = start(layer, index);
  return {k, k + head_words(layer), page_tokens_};
}

float* KvCache::rows(int layer, int index) const { return start(layer, index) + 2 * head_words(layer); }

float* KvCache::entries(int layer, int index) const {
  return rows(layer, index) + shape(layer).row_floats * page_tokens_;
}

float* KvCache::whole_state(int index, int turn) const {
  TROUPE_CHECK(index >= 0 && index < states_, "a state number lies outside the cache");
  return memory_.get() + first_state_ + state_floats_ * (2 * index + turn);
}

float* KvCache::state(int layer, int index) const {
  return whole_state(index, turns_[static_cast<std::size_t>(index)].newest) +
         layers_[static_cast<std::size_t>(layer)].state_offset;
}

int KvCache::turn_of(int index, std::int64_t tokens) const {
  const Turns& turns = turns_[static_cast<std::size_t>(index)];
  TROUPE_CHECK(turns.tokens[0] == tokens || turns.tokens[1] == tokens, "a sequence goes on from a state that is there");
  return turns.tokens[0] == tokens ? 0 : 1;
}

void KvCache::open_states(std::span<const KvSegment> segments) {
  for (const KvSegment& s : segments) {
    Turns& turns = turns_[static_cast<std::size_t>(s.state)];
    const int from = s.cached == 0 ? 1 - turns.newest : turn_of(s.state, s.cached);
    turns.newest = 1 - from;
    turns.tokens[static_cast<std::size_t>(turns.newest)] = -1;
    float* target = whole_state(s.state, turns.newest);
    if (s.cached == 0)
      std::fill_n(target, state_floats_, 0.0F);
    else
      std::copy_n(whole_state(s.state, from), state_floats_, target);
  }
}

void KvCache::close_states(std::span<const KvSegment> segments) {
  for (const KvSegment& s : segments) {
    Turns& turns = turns_[static_cast<std::size_t>(s.state)];
    turns.tokens[static_cast<std::size_t>(turns.newest)] = std::int64_t{s.cached} + s.end - s.begin;
    if (s.cached == 0) turns.tokens[static_cast<std::size_t>(1 - turns.newest)] = -1;
  }
}

void KvCache::copy_page(int source, int destination) {
  for (std::size_t layer = 0; layer < layers_.size(); ++layer)
    std::copy_n(start(static_cast<int>(layer), source), layers_[layer].page_floats,
                start(static_cast<int>(layer), destination));
}

void KvCache::copy_state(int source, int destination, std::int64_t tokens) {
  std::copy_n(whole_state(source, turn_of(source, tokens)), state_floats_, whole_state(destination, 0));
  turns_[static_cast<std::size_t>(destination)] = {{tokens, -1}, 0};
}

}  // namespace troupe::model
