/// @file
/// Gated DeltaNet's recurrence over packed segments.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "tensor/attention.h"

namespace troupe::tensor {

struct DeltaLayout {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  [[nodiscard]] std::int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  [[nodiscard]] std::int64_t state() const { return value_heads * key_dim * value_dim; }
};

enum class DeltaForm : std::uint8_t {
  kRecurrent,  ///< kernels::delta_rule: a row's bits depend on the rows of its document up to itself.
  kChunked,    ///< kernels::delta_rule_chunked: on the document's cuts too.
};

/// Shapes: qkv [T, channels], decay, beta [T, value_heads], result [T, value_heads * value_dim]. A segment goes on from the
/// state at the end of its prefix, which is computed once however many go on from it.
/// Differentiable: kernels::delta_rule_backward; gradients of shared rows are added in the order of the segments. On the GPU:
/// kRecurrent only.
[[nodiscard]] at::Tensor delta_rule(const at::Tensor& qkv, const at::Tensor& decay, const at::Tensor& beta,
                                    const DeltaLayout& layout, std::span<const RowSegment> segments,
                                    DeltaForm form = DeltaForm::kRecurrent, Where where = Where::kHost);

}  // namespace troupe::tensor
