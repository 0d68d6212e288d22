// Attention over a window and compressed entries. Source: research/models.md 7.4.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>

#include "kernels/listed_attention.h"
#include "kernels/streams.h"
#include "model/blocks.h"
#include "tensor/autograd.h"
#include "tensor/parts.h"

namespace troupe::model {

namespace {

/// The roles of one pooling: of keys and values, or of the indexer's keys.
struct Pool {
  Role values, logits, position, norm;
  std::int64_t channels;
};

Pool main_pool(const AttentionSpec& spec) {
  return {Role::kPoolValues, Role::kPoolLogits, Role::kPoolPosition, Role::kPoolNorm, spec.head_dim};
}
Pool index_pool(const AttentionSpec& spec) {
  return {Role::kIndexPoolValues, Role::kIndexPoolLogits, Role::kIndexPoolPosition, Role::kIndexPoolNorm,
          spec.compress.index_dim};
}

/// Norm and rotation of pooled rows, whose windows begin at `positions`.
at::Tensor finished(const Context& context, const AttentionSpec& spec, const Pool& pool, const at::Tensor& rows,
                    std::span<const std::int32_t> positions) {
  if (rows.size(0) == 0) return rows;
  return tensor::rotate_pairs(context.norm(rows, pool.norm, spec.k_norm), 1, context.rope_at(spec.rope, positions));
}

/// Entries of all segments of a packed batch.
tensor::PooledWindows pool_batch(const Context& context, const AttentionSpec& spec, const Pool& pool,
                                 const at::Tensor& x) {
  const CompressSpec& c = spec.compress;
  tensor::PooledWindows windows = tensor::pool_windows(context.project(x, {pool.values, pool.logits}),
                                                       context.value(pool.position), c.overlap, context.sight.segments);
  std::vector<std::int32_t> positions;
  for (std::size_t i = 0; i + 1 < windows.first.size(); ++i)
    for (std::int64_t w = 0; w < windows.first[i + 1] - windows.first[i]; ++w)
      positions.push_back(static_cast<std::int32_t>(w * c.ratio));
  windows.rows = finished(context, spec, pool, windows.rows, positions);
  return windows;
}

/// Pools the windows that the segment's rows complete and puts them into their pages, `column` floats into an entry. The
/// ring keeps the projected rows of as many tokens as a window needs: token t at t mod its length.
void pool_segment(const Context& context, const AttentionSpec& spec, const Pool& pool, const at::Tensor& projected,
                  const KvSegment& segment, float* ring, std::int64_t column) {
  const CompressSpec& c = spec.compress;
  const KvCache& cache = *context.sight.cache;
  const std::int64_t length = (c.overlap ? 2 : 1) * c.ratio;
  const std::int64_t width = projected.size(1);
  const std::int64_t last = segment.cached + segment.end - segment.begin;
  const std::int64_t first_window = segment.cached / c.ratio;
  const at::Tensor pooled = at::empty({last / c.ratio - first_window, pool.channels}, projected.options());
  std::vector<std::int32_t> positions;
  std::vector<const float*> slots(static_cast<std::size_t>(length));
  const at::Tensor position = context.value(pool.position);
  for (std::int64_t token = segment.cached; token < last; ++token) {
    std::copy_n(projected.data_ptr<float>() + (segment.begin + token - segment.cached) * width, width,
                ring + token % length * width);
    if ((token + 1) % c.ratio != 0) continue;
    for (std::int64_t j = 0; j < length; ++j) {
      const std::int64_t source = token + 1 - length + j;
      slots[static_cast<std::size_t>(j)] = source < 0 ? nullptr : ring + source % length * width;
    }
    const std::int64_t window = token / c.ratio;
    kernels::pool_window({slots.data(), position.data_ptr<float>(),
                          pooled.data_ptr<float>() + (window - first_window) * pool.channels, c.ratio, pool.channels,
                          c.overlap});
    positions.push_back(static_cast<std::int32_t>(window * c.ratio));
  }
  const at::Tensor rows = finished(context, spec, pool, pooled, positions);
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    const std::int64_t window = first_window + i;
    const std::int64_t page = ((window + 1) * c.ratio - 1) / cache.page_tokens();
    const std::int64_t place = window - page * cache.page_tokens() / c.ratio;
    std::copy_n(rows.data_ptr<float>() + i * pool.channels, pool.channels,
                cache.entries(context.place, segment.pages[static_cast<std::size_t>(page)]) +
                    place * cache.shape(context.place).entry_floats + column);
  }
}

/// Lists of all entries that are complete.
void choose_all(std::int64_t before, std::int64_t rows, std::int64_t ratio, std::int64_t most, std::int32_t* chosen) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < most; ++i)
      chosen[row * most + i] = i < (before + row + 1) / ratio ? static_cast<std::int32_t>(i) : -1;
}

/// The indexer's view of the rows.
struct Index {
  at::Tensor queries, weights;
};

Index index_rows(const Context& context, const AttentionSpec& spec, const at::Tensor& x, const at::Tensor& q_low) {
  const CompressSpec& c = spec.compress;
  const at::Tensor q = context.project(q_low, {Role::kIndexQ});
  return {tensor::rotate_pairs(q, c.index_heads, context.ropes[static_cast<std::size_t>(spec.rope)]),
          context.project(x, {Role::kIndexWeights}) * (1 / std::sqrt(static_cast<double>(c.index_heads)))};
}

/// One segment's rows: which entries each of them sees.
void choose(const CompressSpec& c, const Index& index, std::int64_t begin, std::int64_t rows, std::int64_t before,
            std::span<const kernels::RowSpan> keys, std::int64_t most, std::int32_t* chosen,
            const at::Tensor& scores = {}) {
  if (c.index_top == 0) return choose_all(before, rows, c.ratio, most, chosen);
  kernels::EntryChoice args;
  args.q = index.queries.data_ptr<float>() + begin * index.queries.size(1);
  args.weights = index.weights.data_ptr<float>() + begin * c.index_heads;
  args.rows = rows;
  args.heads = c.index_heads;
  args.dim = c.index_dim;
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.index_dim)));
  args.keys = keys.data();
  args.key_spans = static_cast<std::int64_t>(keys.size());
  args.before = before;
  args.ratio = c.ratio;
  args.chosen_max = most;
  args.chosen = chosen;
  if (scores.defined()) {
    args.scores = scores.data_ptr<float>() + begin * scores.size(1);
    args.score_stride = scores.size(1);
  }
  kernels::choose_entries(args);
}

/// Room for everybody's list: as long as the longest one can be.
void make_lists(tensor::Entries& entries, const CompressSpec& c, std::int64_t rows, std::int64_t longest) {
  const std::int64_t most = longest / c.ratio;
  entries.chosen_max = c.index_top > 0 ? std::min(c.index_top, most) : most;
  entries.chosen = std::make_shared<std::vector<std::int32_t>>(static_cast<std::size_t>(rows * entries.chosen_max));
}

tensor::Entries batch_entries(const Context& context, const AttentionSpec& spec, const at::Tensor& x,
                              const at::Tensor& q_low) {
  const CompressSpec& c = spec.compress;
  tensor::PooledWindows windows = pool_batch(context, spec, main_pool(spec), x);
  tensor::Entries entries;
  entries.rows = windows.rows;
  entries.first = windows.first;
  std::int64_t longest = 0;
  for (const tensor::RowSegment& s : context.sight.segments)
    longest = std::max(longest, s.prefix_end - s.prefix_begin + s.end - s.begin);
  make_lists(entries, c, x.size(0), longest);
  if (entries.chosen_max == 0) return entries;
  const tensor::NoGrad no_grad;  // which entries a query sees has no gradient
  Index index;
  at::Tensor keys;
  if (c.index_top > 0) {
    index = index_rows(context, spec, x, q_low);
    keys = pool_batch(context, spec, index_pool(spec), x).rows;
  }
  at::Tensor scores;
  if (c.index_top > 0 && context.trace != nullptr)
    scores = at::full({x.size(0), longest / c.ratio}, -INFINITY, x.options().requires_grad(false));
  for (std::size_t i = 0; i < context.sight.segments.size(); ++i) {
    const tensor::RowSegment& s = context.sight.segments[i];
    kernels::RowSpan span;
    if (keys.defined())
      span = {keys.data_ptr<float>() + windows.first[i] * c.index_dim, c.index_dim,
              windows.first[i + 1] - windows.first[i]};
    choose(c, index, s.begin, s.end - s.begin, s.prefix_end - s.prefix_begin, {&span, 1}, entries.chosen_max,
           entries.chosen->data() + s.begin * entries.chosen_max, scores);
  }
  if (!scores.defined()) return entries;
  for (const Trace::Listed& given : context.trace->replay)
    if (given.place == context.place) *entries.chosen = given.lists;
  context.trace->listed.push_back({context.place, entries.chosen_max, *entries.chosen, scores});
  return entries;
}

tensor::Entries cached_entries(const Context& context, const AttentionSpec& spec, const at::Tensor& x,
                               const at::Tensor& q_low) {
  const CompressSpec& c = spec.compress;
  const KvCache& cache = *context.sight.cache;
  const bool indexed = c.index_top > 0;
  const at::Tensor projected = context.project(x, {Role::kPoolValues, Role::kPoolLogits});
  at::Tensor index_projected;
  Index index;
  if (indexed) {
    index_projected = context.project(x, {Role::kIndexPoolValues, Role::kIndexPoolLogits});
    index = index_rows(context, spec, x, q_low);
  }
  tensor::Entries entries;
  std::int64_t longest = 0;
  for (const KvSegment& s : context.sight.batch->segments)
    longest = std::max<std::int64_t>(longest, s.cached + s.end - s.begin);
  make_lists(entries, c, x.size(0), longest);
  for (const KvSegment& s : context.sight.batch->segments) {
    float* ring = cache.state(context.place, s.state);
    pool_segment(context, spec, main_pool(spec), projected, s, ring, 0);
    if (indexed)
      pool_segment(context, spec, index_pool(spec), index_projected, s,
                   ring + (c.overlap ? 2 : 1) * c.ratio * projected.size(1), spec.head_dim);
    if (entries.chosen_max == 0) continue;
    std::vector<kernels::RowSpan> keys;
    const std::int64_t last = s.cached + s.end - s.begin;
    for (std::int64_t token = 0; token < last; token += cache.page_tokens()) {
      const std::int32_t page = s.pages[static_cast<std::size_t>(token / cache.page_tokens())];
      const std::int64_t end = std::min<std::int64_t>(token + cache.page_tokens(), last);
      keys.push_back({cache.entries(context.place, page) + spec.head_dim, cache.shape(context.place).entry_floats,
                      end / c.ratio - token / c.ratio});
    }
    choose(c, index, s.begin, s.end - s.begin, s.cached, keys, entries.chosen_max,
           entries.chosen->data() + s.begin * entries.chosen_max);
  }
  return entries;
}

}  // namespace

at::Tensor compressed_attention(const Context& context, const AttentionSpec& spec, const at::Tensor& x) {
  const CompressSpec& c = spec.compress;
  const tensor::RopeRows& rope = context.ropes[static_cast<std::size_t>(spec.rope)];
  const at::Tensor q_low = context.norm(context.project(x, {Role::kQDown}), Role::kQDownNorm, spec.q_norm);
  at::Tensor q = tensor::normalise(context.project(q_low, {Role::kQUp}), spec.head_dim, spec.q_norm.eps);
  q = tensor::rotate_pairs(q, spec.heads, rope);
  const at::Tensor kv = tensor::rotate_pairs(
      context.norm(context.project(x, {Role::kKvDown}), Role::kKvDownNorm, spec.k_norm), 1, rope);
  tensor::Entries entries;
  if (c.ratio > 0)
    entries = context.sight.cache == nullptr ? batch_entries(context, spec, x, q_low)
                                             : cached_entries(context, spec, x, q_low);
  at::Tensor out = attend_rows(context, q, kv, context.value(Role::kSinks),
                               {spec.heads, 1, spec.head_dim, spec.head_dim, 0, spec.scale, spec.window}, entries);
  out = tensor::rotate_pairs(out, spec.heads, rope, true);
  const at::Tensor groups =
      context.value(Role::kOutDown).view({c.out_groups, c.out_rank, spec.heads * spec.head_dim / c.out_groups});
  return context.project(tensor::group_linear(out, groups, context.slots.group(Role::kOutDown)), {Role::kOut});
}

}  // namespace troupe::model
