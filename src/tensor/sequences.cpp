#include "tensor/sequences.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/offload.h"
#include "kernels/streams.h"
#include "tensor/recorded.h"

namespace troupe::tensor {

namespace {

using Segments = std::vector<RowSegment>;

bool has_prefix(const RowSegment& s) { return s.prefix_end > s.prefix_begin; }
std::int64_t prefix_rows(const RowSegment& s) { return s.prefix_end - s.prefix_begin; }
std::int64_t own_rows(const RowSegment& s) { return s.end - s.begin; }

/// The rows of a segment's document.
at::Tensor document(const at::Tensor& x, const RowSegment& s) {
  const at::Tensor own = x.narrow(0, s.begin, own_rows(s));
  return has_prefix(s) ? at::cat({x.narrow(0, s.prefix_begin, prefix_rows(s)), own}, 0) : own;
}

at::Tensor attention_values(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& sinks,
                            const ListedLayout& layout, const Segments& segments, const Entries& entries) {
  at::Tensor out = at::empty({q.size(0), layout.heads * layout.value_dim}, q.options());
  const std::int64_t row = kv.size(1);
  std::vector<kernels::RowSpan> spans(3 * segments.size());
  std::vector<kernels::ListedSegment> list(segments.size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const RowSegment& s = segments[i];
    kernels::RowSpan* tokens = &spans[3 * i];
    tokens[0] = {kv.data_ptr<float>() + s.prefix_begin * row, row, prefix_rows(s)};
    tokens[1] = {kv.data_ptr<float>() + s.begin * row, row, own_rows(s)};
    kernels::ListedSegment& one = list[i];
    one = listed_segment(q, out, s.begin, s.end, prefix_rows(s), entries);
    one.tokens = tokens;
    one.token_spans = 2;
    if (entries.chosen_max == 0) continue;
    tokens[2] = {entries.rows.data_ptr<float>() + entries.first[i] * row, row, entries.first[i + 1] - entries.first[i]};
    one.entries = tokens + 2;
    one.entry_spans = 1;
  }
  kernels::listed_attention(listed_shape(layout, sinks), list.data(), static_cast<std::int64_t>(list.size()));
  return out;
}

/// Of q, kv, the sinks and the entries, as far as there are any.
std::vector<at::Tensor> attention_gradients(std::span<const at::Tensor> in, const at::Tensor& dout, bool has_sinks,
                                            const ListedLayout& layout, const Segments& segments, const Entries& entries) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& input : in) gradients.push_back(at::empty_like(input));
  kernels::ListedGrad grad;
  grad.q = in[0].data_ptr<float>(), grad.dq = gradients[0].data_ptr<float>();
  grad.kv = in[1].data_ptr<float>(), grad.dkv = gradients[1].data_ptr<float>();
  grad.dout = dout.data_ptr<float>();
  grad.rows = in[1].size(0), grad.row = in[1].size(1);
  if (has_sinks) grad.dsinks = gradients[2].data_ptr<float>();
  if (entries.chosen_max > 0) {
    grad.entries = in.back().data_ptr<float>(), grad.dentries = gradients.back().data_ptr<float>();
    grad.entry_rows = in.back().size(0);
    grad.chosen = entries.chosen->data(), grad.chosen_max = entries.chosen_max;
  }
  std::vector<kernels::ListedGradSegment> list;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const RowSegment& s = segments[i];
    list.push_back({s.begin, own_rows(s), s.prefix_begin, prefix_rows(s), entries.chosen_max > 0 ? entries.first[i] : 0});
  }
  kernels::listed_attention_backward(listed_shape(layout, has_sinks ? in[2] : at::Tensor()), grad, list.data(),
                                     static_cast<std::int64_t>(list.size()));
  return gradients;
}

/// The rows before a segment's first that its convolution reads, zeros where there are none. Returns how many there are.
std::int64_t conv_history(const at::Tensor& x, const RowSegment& s, std::int64_t rows, std::vector<float>& history) {
  const std::int64_t channels = x.size(1), known = std::min(rows, prefix_rows(s));
  history.assign(static_cast<std::size_t>(rows * channels), 0.0F);
  std::copy_n(x.data_ptr<float>() + (s.prefix_end - known) * channels, known * channels,
              history.data() + (rows - known) * channels);
  return known;
}

kernels::CausalConv conv_of_segment(const at::Tensor& x, const at::Tensor& weight, const RowSegment& s,
                                    const std::vector<float>& history) {
  return {x.data_ptr<float>() + s.begin * x.size(1), history.data(), weight.data_ptr<float>(), nullptr, own_rows(s),
          x.size(1), weight.size(2)};
}

at::Tensor conv_values(const at::Tensor& x, const at::Tensor& weight, const Segments& segments, Where where) {
  at::Tensor y = at::empty_like(x);
  std::vector<float> history;
  for (const RowSegment& s : segments) {
    (void)conv_history(x, s, weight.size(2) - 1, history);
    kernels::CausalConv conv = conv_of_segment(x, weight, s, history);
    conv.y = y.data_ptr<float>() + s.begin * x.size(1);
    done(kernels::run(where, conv));
  }
  return y;
}

/// Of x and the weight. What segments add to the rows of their prefixes comes after those rows' own gradients.
std::vector<at::Tensor> conv_gradients(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& dy,
                                       const Segments& segments) {
  const at::Tensor dx = at::empty_like(x), dweight = at::zeros_like(weight);
  const std::int64_t channels = x.size(1), before = weight.size(2) - 1;
  std::vector<std::vector<float>> dhistory(segments.size());
  std::vector<float> history;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const RowSegment& s = segments[i];
    if (conv_history(x, s, before, history) > 0) dhistory[i].resize(history.size());
    const std::int64_t first = s.begin * channels;
    kernels::causal_conv_backward({conv_of_segment(x, weight, s, history), dy.data_ptr<float>() + first,
                                   dx.data_ptr<float>() + first, dhistory[i].empty() ? nullptr : dhistory[i].data(),
                                   dweight.data_ptr<float>()});
  }
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (dhistory[i].empty()) continue;
    const std::int64_t known = std::min(before, prefix_rows(segments[i])), n = known * channels;
    float* to = dx.data_ptr<float>() + segments[i].prefix_end * channels - n;
    const float* from = dhistory[i].data() + before * channels - n;
    for (std::int64_t j = 0; j < n; ++j) to[j] += from[j];
  }
  return {dx, dweight};
}

at::Tensor pool_values(const at::Tensor& rows, const at::Tensor& position, bool overlap, const Segments& segments,
                       const std::vector<std::int64_t>& first) {
  const std::int64_t ratio = position.size(0);
  const std::int64_t channels = position.size(1) / (overlap ? 2 : 1);
  at::Tensor out = at::empty({first.back(), channels}, rows.options());
  std::vector<const float*> slots(static_cast<std::size_t>((overlap ? 2 : 1) * ratio));
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const RowSegment& s = segments[i];
    const auto row_of = [&](std::int64_t token) {
      const std::int64_t row = token < prefix_rows(s) ? s.prefix_begin + token : s.begin + token - prefix_rows(s);
      return rows.data_ptr<float>() + row * rows.size(1);
    };
    for (std::int64_t w = 0; w < first[i + 1] - first[i]; ++w) {
      const std::int64_t begin = w * ratio - (overlap ? ratio : 0);
      for (std::size_t j = 0; j < slots.size(); ++j) {
        const std::int64_t token = begin + static_cast<std::int64_t>(j);
        slots[j] = token < 0 ? nullptr : row_of(token);
      }
      kernels::pool_window({slots.data(), position.data_ptr<float>(),
                            out.data_ptr<float>() + (first[i] + w) * channels, ratio, channels, overlap});
    }
  }
  return out;
}

at::Tensor pool_formula(std::span<const at::Tensor> in, bool overlap, const Segments& segments,
                        const std::vector<std::int64_t>& first) {
  const std::int64_t ratio = in[1].size(0);
  const std::int64_t width = in[1].size(1);
  const std::int64_t channels = width / (overlap ? 2 : 1);
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::int64_t windows = first[i + 1] - first[i];
    if (windows == 0) continue;
    const at::Tensor rows = document(in[0], segments[i]).narrow(0, 0, windows * ratio).reshape({windows, ratio, -1});
    at::Tensor values = rows.narrow(2, 0, width);
    at::Tensor logits = rows.narrow(2, width, width) + in[1];
    if (overlap) {
      const at::Tensor none = at::zeros({1, ratio, channels}, in[0].options());
      const auto before = [&](const at::Tensor& x, const at::Tensor& lack) {
        return at::cat({lack, x.narrow(0, 0, windows - 1).narrow(2, 0, channels)}, 0);
      };
      values = at::cat({before(values, none), values.narrow(2, channels, channels)}, 1);
      logits = at::cat({before(logits, none - INFINITY), logits.narrow(2, channels, channels)}, 1);
    }
    parts.push_back((values * logits.softmax(1)).sum(1));
  }
  return parts.empty() ? at::zeros({0, channels}, in[0].options()) : at::cat(parts, 0);
}

}  // namespace

kernels::ListedShape listed_shape(const ListedLayout& layout, const at::Tensor& sinks) {
  return {layout.heads,        layout.kv_heads,
          layout.key_dim,      layout.value_dim,
          layout.value_offset, static_cast<float>(layout.scale),
          layout.window,       sinks.defined() ? sinks.data_ptr<float>() : nullptr};
}

kernels::ListedSegment listed_segment(const at::Tensor& q, const at::Tensor& out, std::int64_t begin, std::int64_t end,
                                      std::int64_t before, const Entries& entries) {
  kernels::ListedSegment segment;
  segment.q = q.data_ptr<float>() + begin * q.size(1);
  segment.out = out.data_ptr<float>() + begin * out.size(1);
  segment.rows = end - begin;
  segment.q_stride = q.size(1);
  segment.out_stride = out.size(1);
  segment.before = before;
  if (entries.chosen_max == 0) return segment;
  segment.chosen = entries.chosen->data() + begin * entries.chosen_max;
  segment.chosen_max = entries.chosen_max;
  return segment;
}

at::Tensor listed_attention(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& sinks,
                            const ListedLayout& layout, std::span<const RowSegment> segments, const Entries& entries) {
  TROUPE_CHECK(q.is_contiguous() && kv.is_contiguous() && q.size(1) == layout.heads * layout.key_dim,
               "rows of queries and of keys and values");
  const Segments kept(segments.begin(), segments.end());
  std::vector<at::Tensor> inputs = {q, kv};
  if (sinks.defined()) inputs.push_back(sinks);
  if (entries.chosen_max > 0) inputs.push_back(entries.rows);
  return recorded_with(attention_values(q, kv, sinks, layout, kept, entries), std::move(inputs),
                       [has_sinks = sinks.defined(), layout, kept, first = entries.first, chosen = entries.chosen,
                        chosen_max = entries.chosen_max](auto in, const at::Tensor& dout) {
                         return attention_gradients(in, dout, has_sinks, layout, kept, Entries{{}, first, chosen, chosen_max});
                       });
}

at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight, std::span<const RowSegment> segments,
                       Where where) {
  const Segments kept(segments.begin(), segments.end());
  return recorded_with(conv_values(x, weight, kept, where), {x, weight}, [kept](auto in, const at::Tensor& dy) {
    return conv_gradients(in[0], in[1], dy, kept);
  });
}

PooledWindows pool_windows(const at::Tensor& rows, const at::Tensor& position, bool overlap,
                           std::span<const RowSegment> segments) {
  const Segments kept(segments.begin(), segments.end());
  PooledWindows pooled;
  pooled.first.push_back(0);
  for (const RowSegment& s : kept)
    pooled.first.push_back(pooled.first.back() + (prefix_rows(s) + own_rows(s)) / position.size(0));
  pooled.rows = recorded(pool_values(rows, position, overlap, kept, pooled.first), {rows, position},
                         [kept, overlap, first = pooled.first](auto in) {
                           return pool_formula(in, overlap, kept, first);
                         });
  return pooled;
}

}  // namespace troupe::tensor
