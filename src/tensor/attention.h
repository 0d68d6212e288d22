/// @file
/// Causal attention over fused q|k|v rows: packed segments when training, pages when generating. One kernel, the same
/// bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "tensor/ops.h"

namespace troupe::tensor {

/// Rows [begin, end) attend to rows [prefix_begin, prefix_end), then causally to themselves.
struct RowSegment {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t prefix_begin = 0;
  std::int64_t prefix_end = 0;
};

/// Segments as numbers that a graph can keep, and back.
[[nodiscard]] std::vector<std::int64_t> numbers_of(std::span<const RowSegment> segments);
[[nodiscard]] std::vector<RowSegment> segments_of(std::span<const std::int64_t> numbers);

/// Shapes: qkv [T, layout.row()], result [T, heads * head_dim]. Segments cover every row once. `precision`: of the
/// operands of its products, forward and backward.
/// Differentiable. Determinism: gradients of shared keys are added in the order of the segments.
[[nodiscard]] at::Tensor attention(const at::Tensor& qkv, const HeadLayout& layout, float scale,
                                   std::span<const RowSegment> segments,
                                   kernels::Precision precision = kernels::Precision::kFloat32, Where where = Where::kHost);

/// Rows [begin, end) are the tokens from `cached` on of a sequence that lies in `pages`.
struct PagedSegment {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t cached = 0;
  std::span<const kernels::KvPage> pages;
};

/// Stores the rows' keys and values in their pages, then attends over the pages. Not differentiable.
[[nodiscard]] at::Tensor paged_attention(const at::Tensor& qkv, const HeadLayout& layout, float scale,
                                         std::span<const PagedSegment> segments,
                                         kernels::Precision precision = kernels::Precision::kFloat32);

}  // namespace troupe::tensor
