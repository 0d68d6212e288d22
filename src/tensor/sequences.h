/// @file
/// Operations in which a row sees earlier rows of its document, for packed segments: attention over listed rows, causal
/// convolution, pooled windows. A segment's document is its shared prefix (if any), then its own rows.
/// Determinism of all: a row's bits depend on the rows of its document up to itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/listed_attention.h"
#include "tensor/attention.h"

namespace troupe::tensor {

/// kernels::ListedShape without the sinks.
struct ListedLayout {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t value_offset = 0;
  double scale = 1;
  std::int64_t window = 0;
};

/// Compressed entries of every segment's document, and which of them each row sees.
struct Entries {
  at::Tensor rows;                  ///< [N, row]
  std::vector<std::int64_t> first;  ///< [segments + 1]: segment i has entries [first[i], first[i + 1]).
  std::shared_ptr<std::vector<std::int32_t>> chosen;  ///< [T, chosen_max], counted in the segment; -1 ends a list.
  std::int64_t chosen_max = 0;
};

/// What kernels::listed_attention is told of all segments. `sinks` may be undefined and must outlive the result.
[[nodiscard]] kernels::ListedShape listed_shape(const ListedLayout& layout, const at::Tensor& sinks);
/// And of one, whose rows are [begin, end) of q, out and `entries`: everything but where its tokens and entries lie.
[[nodiscard]] kernels::ListedSegment listed_segment(const at::Tensor& q, const at::Tensor& out, std::int64_t begin, std::int64_t end,
                                                    std::int64_t before, const Entries& entries);

/// Shapes: q [T, heads * key_dim], kv [T, row] (kernels::ListedShape says what a row is), sinks [heads] or undefined,
/// result [T, heads * value_dim].
[[nodiscard]] at::Tensor listed_attention(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& sinks,
                                          const ListedLayout& layout, std::span<const RowSegment> segments,
                                          const Entries& entries = {});

/// kernels::causal_conv; its gradient is the CPU's wherever it runs. Shapes: x [T, C], weight [C, 1, taps].
[[nodiscard]] at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight,
                                     std::span<const RowSegment> segments, Where where = Where::kHost);

/// Every complete window of every segment's document, pooled (kernels::pool_window). Shapes: rows [T, 2 * width],
/// position [ratio, width], width = channels or, overlapping, 2 * channels.
struct PooledWindows {
  at::Tensor rows;                  ///< [N, channels]
  std::vector<std::int64_t> first;  ///< [segments + 1]
};
[[nodiscard]] PooledWindows pool_windows(const at::Tensor& rows, const at::Tensor& position, bool overlap,
                                         std::span<const RowSegment> segments);

}  // namespace troupe::tensor
