#include "model/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/check.h"

namespace troupe::model {

namespace {

std::int64_t half_page(const AttentionSpec& attention, int page_tokens) {
  kernels::AttentionShape shape;
  shape.heads = attention.heads;
  shape.kv_heads = attention.kv_heads;
  shape.head_dim = attention.head_dim;
  return kernels::kv_page_floats(shape, page_tokens);
}

}  // namespace

void KvCache::Unmap::operator()(float* memory) const { ::munmap(memory, bytes); }

std::int64_t KvCache::bytes_per_page(const ModelSpec& spec, int page_tokens) {
  std::int64_t floats = 0;
  for (const LayerSpec& layer : spec.layers) floats += 2 * half_page(layer.attention, page_tokens);
  return floats * static_cast<std::int64_t>(sizeof(float));
}

KvCache::KvCache(const ModelSpec& spec, int pages, int page_tokens) : pages_(pages), page_tokens_(page_tokens) {
  TROUPE_CHECK(pages >= 1 && page_tokens >= 16 && page_tokens % 16 == 0, "a page holds a multiple of 16 tokens");
  std::int64_t offset = 0;
  for (const LayerSpec& layer : spec.layers) {
    const std::int64_t half = half_page(layer.attention, page_tokens);
    layers_.push_back({half, offset});
    offset += 2 * half * pages;
  }
  bytes_ = offset * static_cast<std::int64_t>(sizeof(float));
  const auto size = static_cast<std::size_t>(bytes_);
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TROUPE_CHECK(memory != MAP_FAILED, "no address space for the key-value cache");
  memory_ = std::unique_ptr<float, Unmap>(static_cast<float*>(memory), Unmap{size});
}

kernels::KvPage KvCache::page(int layer, int index) const {
  const Layer& place = layers_[static_cast<std::size_t>(layer)];
  float* k = memory_.get() + place.offset + 2 * place.half_floats * index;
  return {k, k + place.half_floats, page_tokens_};
}

void KvCache::copy_page(int source, int destination) {
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const kernels::KvPage from = page(static_cast<int>(layer), source);
    std::copy_n(from.k, 2 * layers_[layer].half_floats, page(static_cast<int>(layer), destination).k);
  }
}

}  // namespace troupe::model
