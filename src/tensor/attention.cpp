#include "tensor/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/offload.h"
#include "tensor/autograd.h"
#include "tensor/workspace.h"

namespace troupe::tensor {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

kernels::AttentionShape shape_of(const HeadLayout& layout, double scale, kernels::Precision precision) {
  return {layout.heads, layout.kv_heads, layout.head_dim, static_cast<float>(scale), precision};
}

/// Where the parts of a fused row begin, in floats.
struct Columns {
  explicit Columns(const HeadLayout& layout)
      : k(layout.heads * layout.head_dim), v(k + layout.kv_heads * layout.head_dim), row(layout.row()) {}
  std::int64_t k, v, row;
};

at::Tensor attend_rows(const at::Tensor& qkv, const HeadLayout& layout, double scale,
                       std::span<const RowSegment> segments, kernels::Precision precision, Where where, at::Tensor* lse) {
  const Columns columns(layout);
  at::Tensor out = at::empty({qkv.size(0), columns.k}, qkv.options());
  if (lse != nullptr) *lse = at::empty({qkv.size(0), layout.heads}, qkv.options());
  const float* rows = qkv.data_ptr<float>();
  std::vector<kernels::KeySpan> spans(2 * segments.size());
  std::vector<kernels::AttentionSegment> list(segments.size());
  const auto span_of = [&](std::int64_t begin, std::int64_t end) {
    return kernels::KeySpan{rows + begin * columns.row + columns.k, rows + begin * columns.row + columns.v, end - begin,
                            columns.row, kernels::KvLayout::kRows};
  };
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const RowSegment& segment = segments[i];
    const bool shared = segment.prefix_end > segment.prefix_begin;
    kernels::KeySpan* own = &spans[2 * i];
    if (shared) *own++ = span_of(segment.prefix_begin, segment.prefix_end);
    *own = span_of(segment.begin, segment.end);
    kernels::AttentionSegment& one = list[i];
    one.q = rows + segment.begin * columns.row;
    one.out = out.data_ptr<float>() + segment.begin * columns.k;
    one.lse = lse == nullptr ? nullptr : lse->data_ptr<float>() + segment.begin * layout.heads;
    one.rows = segment.end - segment.begin;
    one.q_stride = columns.row;
    one.spans = &spans[2 * i];
    one.span_count = shared ? 2 : 1;
  }
  const kernels::AttentionMemory memory{floats(qkv), floats(out), lse == nullptr ? std::span<float>() : floats(*lse)};
  done(kernels::attention_forward(where, shape_of(layout, scale, precision), list, memory));
  return out;
}

/// Segments in the order the backward kernel wants: those that share rows side by side, the owner of the rows first.
std::vector<RowSegment> by_shared_rows(std::vector<RowSegment> segments) {
  std::stable_sort(segments.begin(), segments.end(), [](const RowSegment& a, const RowSegment& b) {
    const auto first_key = [](const RowSegment& s) { return s.prefix_end > s.prefix_begin ? s.prefix_begin : s.begin; };
    return first_key(a) < first_key(b);
  });
  return segments;
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const HeadLayout& layout, double scale,
                            std::span<const RowSegment> segments, kernels::Precision precision, Where where) {
    at::Tensor lse;
    at::Tensor out = attend_rows(qkv, layout, scale, segments, precision, where, &lse);
    ctx->save_for_backward({qkv, out, lse});
    ctx->saved_data["segments"] = numbers_of(segments);
    ctx->saved_data["layout"] = std::vector<std::int64_t>{layout.heads, layout.kv_heads, layout.head_dim, static_cast<std::int64_t>(precision),
                                                               static_cast<std::int64_t>(where)};
    ctx->saved_data["scale"] = scale;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto sizes = ctx->saved_data["layout"].toIntVector();
    const HeadLayout layout{sizes[0], sizes[1], sizes[2]};
    const Columns columns(layout);
    const std::vector<RowSegment> segments = by_shared_rows(segments_of(ctx->saved_data["segments"].toIntVector()));
    const at::Tensor dout = gradients[0].contiguous();
    at::Tensor dqkv = at::zeros_like(saved[0]);
    const float* rows = saved[0].data_ptr<float>();
    float* grads = dqkv.data_ptr<float>();
    const auto keys = [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = begin * columns.row;
      return kernels::KeyGrad{rows + at + columns.k, rows + at + columns.v, grads + at + columns.k,
                              grads + at + columns.v, end - begin};
    };
    std::vector<kernels::AttentionGradSegment> list;
    for (const RowSegment& segment : segments) {
      kernels::AttentionGradSegment one;
      one.q = rows + segment.begin * columns.row;
      one.out = saved[1].data_ptr<float>() + segment.begin * columns.k;
      one.dout = dout.data_ptr<float>() + segment.begin * columns.k;
      one.lse = saved[2].data_ptr<float>() + segment.begin * layout.heads;
      one.dq = grads + segment.begin * columns.row;
      one.rows = segment.end - segment.begin;
      if (segment.prefix_end > segment.prefix_begin) one.prefix = keys(segment.prefix_begin, segment.prefix_end);
      one.own = keys(segment.begin, segment.end);
      list.push_back(one);
    }
    const kernels::AttentionGradStrides strides{columns.row, columns.k, columns.row, columns.row, columns.row};
    const auto shape = shape_of(layout, ctx->saved_data["scale"].toDouble(), static_cast<kernels::Precision>(sizes[3]));
    done(kernels::attention_backward(static_cast<Where>(sizes[4]), shape, strides, list,
                                     {floats(saved[0]), floats(saved[1]), floats(dout), floats(saved[2]), floats(dqkv)}));
    return {dqkv, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::vector<std::int64_t> numbers_of(std::span<const RowSegment> segments) {
  std::vector<std::int64_t> numbers;
  for (const RowSegment& s : segments) numbers.insert(numbers.end(), {s.begin, s.end, s.prefix_begin, s.prefix_end});
  return numbers;
}

std::vector<RowSegment> segments_of(std::span<const std::int64_t> numbers) {
  std::vector<RowSegment> segments;
  for (std::size_t i = 0; i + 3 < numbers.size(); i += 4)
    segments.push_back({numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3]});
  return segments;
}

at::Tensor attention(const at::Tensor& qkv, const HeadLayout& layout, float scale,
                     std::span<const RowSegment> segments, kernels::Precision precision, Where where) {
  TROUPE_CHECK(qkv.dim() == 2 && qkv.is_contiguous() && qkv.size(1) == layout.row(),
               "fused rows of query, key and value heads");
  if (!at::GradMode::is_enabled()) return attend_rows(qkv, layout, scale, segments, precision, where, nullptr);
  return AttentionFunction::apply(qkv, layout, static_cast<double>(scale), segments, precision, where);
}

at::Tensor paged_attention(const at::Tensor& qkv, const HeadLayout& layout, float scale,
                           std::span<const PagedSegment> segments, kernels::Precision precision) {
  TROUPE_CHECK(qkv.dim() == 2 && qkv.is_contiguous() && qkv.size(1) == layout.row(),
               "fused rows of query, key and value heads");
  const Columns columns(layout);
  const kernels::AttentionShape shape = shape_of(layout, scale, precision);
  at::Tensor out = unrecorded_rows(qkv.size(0), columns.k);
  const float* rows = qkv.data_ptr<float>();
  thread_local std::vector<kernels::KeySpan> spans;  // kept: a step of decoding calls this once a layer
  thread_local std::vector<kernels::AttentionSegment> list;
  thread_local std::vector<std::size_t> first_span;
  thread_local std::vector<kernels::PageStore> stores;
  spans.clear();
  list.clear();
  first_span.clear();
  stores.clear();
  for (const PagedSegment& segment : segments) {
    const std::int64_t count = segment.end - segment.begin;
    const std::int64_t total = segment.cached + count;
    first_span.push_back(spans.size());
    std::int64_t token = 0;
    for (const kernels::KvPage& page : segment.pages) {
      if (token >= total) break;
      const std::int64_t held = std::min(page.capacity, total - token);
      const std::int64_t first = std::max<std::int64_t>(segment.cached - token, 0);
      if (first < held) {
        const float* source = rows + (segment.begin + token + first - segment.cached) * columns.row;
        stores.push_back({source + columns.k, source + columns.v, columns.row, held - first, page, first});
      }
      spans.push_back({page.k, page.v, held, page.capacity, kernels::KvLayout::kPages});
      token += held;
    }
    TROUPE_CHECK(token == total, "a sequence has more tokens than its pages hold");
    kernels::AttentionSegment one;
    one.q = rows + segment.begin * columns.row;
    one.out = out.data_ptr<float>() + segment.begin * columns.k;
    one.rows = count;
    one.q_stride = columns.row;
    one.span_count = static_cast<std::int64_t>(spans.size() - first_span.back());
    list.push_back(one);
  }
  for (std::size_t i = 0; i < list.size(); ++i) list[i].spans = spans.data() + first_span[i];
  kernels::store_in_pages(shape, stores.data(), static_cast<std::int64_t>(stores.size()));
  kernels::attention_forward(shape, list.data(), static_cast<std::int64_t>(list.size()));
  return out;
}

}  // namespace troupe::tensor
