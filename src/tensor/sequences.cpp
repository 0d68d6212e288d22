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

/// Applies `f` to every segment's document and puts the segments' own rows of the results together.
template <class F>
at::Tensor by_document(const Segments& segments, F&& f) {
  std::vector<at::Tensor> parts;
  for (const RowSegment& s : segments) parts.push_back(f(s).narrow(0, prefix_rows(s), own_rows(s)));
  return at::cat(parts, 0);
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

/// What each query of a segment sees: [rows, tokens | entries].
at::Tensor visible(const RowSegment& s, std::int64_t window, const Entries& entries, std::size_t index) {
  const std::int64_t before = prefix_rows(s);
  const at::Tensor query = at::arange(before, before + own_rows(s)).unsqueeze(1);
  const at::Tensor distance = query - at::arange(before + own_rows(s)).unsqueeze(0);
  at::Tensor mask = distance.ge(0);
  if (window > 0) mask = mask.logical_and(distance.lt(window));
  if (entries.chosen_max == 0) return mask;
  at::Tensor chosen = at::zeros({own_rows(s), entries.first[index + 1] - entries.first[index]}, at::kBool);
  for (std::int64_t row = 0; row < own_rows(s); ++row)
    for (std::int64_t j = 0; j < entries.chosen_max; ++j) {
      const std::int32_t entry = (*entries.chosen)[static_cast<std::size_t>((s.begin + row) * entries.chosen_max + j)];
      if (entry < 0) break;
      chosen.data_ptr<bool>()[row * chosen.size(1) + entry] = true;
    }
  return at::cat({mask, chosen}, 1);
}

/// One segment: queries [t, H, kd], rows [s, row].
at::Tensor attention_of_segment(const at::Tensor& q, const at::Tensor& rows, const at::Tensor& sinks,
                                const ListedLayout& l, const at::Tensor& mask) {
  const std::int64_t group = l.heads / l.kv_heads;
  const at::Tensor k = rows.narrow(1, 0, l.kv_heads * l.key_dim).reshape({-1, l.kv_heads, l.key_dim}).transpose(0, 1);
  const at::Tensor v =
      rows.narrow(1, l.value_offset, l.kv_heads * l.value_dim).reshape({-1, l.kv_heads, l.value_dim}).transpose(0, 1);
  const at::Tensor queries =
      q.view({-1, l.kv_heads, group, l.key_dim}).permute({1, 2, 0, 3}).reshape({l.kv_heads, -1, l.key_dim});
  const std::int64_t t = q.size(0);
  at::Tensor scores = at::bmm(queries, k.transpose(1, 2)).view({l.heads, t, -1}) * l.scale;
  scores = scores.masked_fill(mask.logical_not().unsqueeze(0), -INFINITY);
  if (sinks.defined()) scores = at::cat({scores, sinks.view({-1, 1, 1}).expand({l.heads, t, 1})}, 2);
  at::Tensor p = scores.softmax(-1);
  if (sinks.defined()) p = p.narrow(2, 0, p.size(2) - 1);
  const at::Tensor out = at::bmm(p.reshape({l.kv_heads, group * t, -1}), v);
  return out.view({l.kv_heads, group, t, l.value_dim}).permute({2, 0, 1, 3}).reshape({t, -1});
}

at::Tensor attention_formula(std::span<const at::Tensor> in, bool has_sinks, const ListedLayout& layout,
                             const Segments& segments, const Entries& entries) {
  const at::Tensor sinks = has_sinks ? in[2] : at::Tensor();
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const RowSegment& s = segments[i];
    at::Tensor rows = document(in[1], s);
    if (entries.chosen_max > 0)
      rows = at::cat({rows, in.back().narrow(0, entries.first[i], entries.first[i + 1] - entries.first[i])}, 0);
    parts.push_back(attention_of_segment(in[0].narrow(0, s.begin, own_rows(s)), rows, sinks, layout,
                                         visible(s, layout.window, entries, i)));
  }
  return at::cat(parts, 0);
}

at::Tensor conv_of_document(const at::Tensor& x, const at::Tensor& weight) {
  const std::int64_t taps = weight.size(2);
  const at::Tensor padded = at::cat({at::zeros({taps - 1, x.size(1)}, x.options()), x}, 0);
  at::Tensor y = padded.narrow(0, 0, x.size(0)) * weight.select(2, 0).select(1, 0);
  for (std::int64_t j = 1; j < taps; ++j)
    y = y + padded.narrow(0, j, x.size(0)) * weight.select(2, j).select(1, 0);
  return at::silu(y);
}

at::Tensor conv_values(const at::Tensor& x, const at::Tensor& weight, const Segments& segments, Where where) {
  at::Tensor y = at::empty_like(x);
  const std::int64_t channels = x.size(1);
  const std::int64_t taps = weight.size(2);
  const float* rows = x.data_ptr<float>();
  std::vector<float> history;
  for (const RowSegment& s : segments) {
    history.assign(static_cast<std::size_t>((taps - 1) * channels), 0.0F);
    const std::int64_t known = std::min(taps - 1, prefix_rows(s));
    std::copy_n(rows + (s.prefix_end - known) * channels, known * channels,
                history.data() + (taps - 1 - known) * channels);
    done(kernels::run(where, kernels::CausalConv{rows + s.begin * channels, history.data(), weight.data_ptr<float>(),
                                                 y.data_ptr<float>() + s.begin * channels, own_rows(s), channels, taps}));
  }
  return y;
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
  return recorded(attention_values(q, kv, sinks, layout, kept, entries), std::move(inputs),
                  [has_sinks = sinks.defined(), layout, kept, first = entries.first, chosen = entries.chosen,
                   chosen_max = entries.chosen_max](auto in) {
                    return attention_formula(in, has_sinks, layout, kept, Entries{{}, first, chosen, chosen_max});
                  });
}

at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight, std::span<const RowSegment> segments,
                       Where where) {
  const Segments kept(segments.begin(), segments.end());
  return recorded(conv_values(x, weight, kept, where), {x, weight}, [kept](auto in) {
    return by_document(kept, [&](const RowSegment& s) { return conv_of_document(document(in[0], s), in[1]); });
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
