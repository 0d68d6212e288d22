// Attention over listed rows of a cache: rows into pages, pages and entries as spans.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "kernels/listed_attention.h"
#include "model/blocks.h"

namespace troupe::model {

namespace {

/// Puts the segment's rows into their pages.
void store(const Context& context, const KvSegment& segment, const at::Tensor& kv) {
  const KvCache& cache = *context.sight.cache;
  const std::int64_t width = kv.size(1);
  for (std::int32_t row = segment.begin; row < segment.end; ++row) {
    const std::int32_t token = segment.cached + row - segment.begin;
    const std::int32_t page = segment.pages[static_cast<std::size_t>(token / cache.page_tokens())];
    std::copy_n(kv.data_ptr<float>() + row * width, width,
                cache.rows(context.place, page) + token % cache.page_tokens() * width);
  }
}

}  // namespace

at::Tensor attend_rows(const Context& context, const at::Tensor& q, const at::Tensor& kv, const at::Tensor& sinks,
                       const tensor::ListedLayout& layout, const tensor::Entries& entries) {
  const Sight& sight = context.sight;
  if (sight.cache == nullptr) return tensor::listed_attention(q, kv, sinks, layout, sight.segments, entries);
  const KvCache& cache = *sight.cache;
  const CacheShape& shape = cache.shape(context.place);
  const std::int64_t page_tokens = cache.page_tokens();
  at::Tensor out = at::empty({q.size(0), layout.heads * layout.value_dim}, q.options());
  std::vector<std::vector<kernels::RowSpan>> tokens(sight.batch->segments.size());
  std::vector<std::vector<kernels::RowSpan>> compressed(tokens.size());
  std::vector<kernels::ListedSegment> list(tokens.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const KvSegment& s = sight.batch->segments[i];
    store(context, s, kv);
    const std::int64_t total = std::int64_t{s.cached} + s.end - s.begin;
    for (std::int64_t token = 0; token < total; token += page_tokens) {
      const std::int32_t page = s.pages[static_cast<std::size_t>(token / page_tokens)];
      const std::int64_t end = std::min(token + page_tokens, total);
      tokens[i].push_back({cache.rows(context.place, page), shape.row_floats, end - token});
      if (entries.chosen_max > 0)
        compressed[i].push_back({cache.entries(context.place, page), shape.entry_floats,
                                 end / shape.ratio - token / shape.ratio});
    }
    kernels::ListedSegment& one = list[i];
    one = tensor::listed_segment(q, out, s.begin, s.end, s.cached, entries);
    one.tokens = tokens[i].data();
    one.token_spans = static_cast<std::int64_t>(tokens[i].size());
    if (entries.chosen_max == 0) continue;
    one.entries = compressed[i].data();
    one.entry_spans = static_cast<std::int64_t>(compressed[i].size());
  }
  kernels::listed_attention(tensor::listed_shape(layout, sinks), list.data(), static_cast<std::int64_t>(list.size()));
  return out;
}

}  // namespace troupe::model
