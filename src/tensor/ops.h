/// @file
/// Differentiable row operations of a decoder on our own kernels. A row of a result depends on its own row of the input
/// only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "tensor/place.h"

namespace troupe::tensor {

/// y = (weight + offset) * x / sqrt(mean(x^2) + eps). Shapes: x [T, D], weight [D].
[[nodiscard]] at::Tensor rmsnorm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset, Where where = Where::kHost);

/// y + x, written over y. Shapes: equal. Not differentiable.
[[nodiscard]] at::Tensor add_in_place(at::Tensor y, const at::Tensor& x);

/// y = silu(gate) * up. Shapes: gate_up [T, 2I] (gate first), y [T, I].
[[nodiscard]] at::Tensor swiglu(const at::Tensor& gate_up, Where where = Where::kHost);

/// Rows `ids` of the table. Shapes: weight [V, D], result [ids, D]. Precondition: ids in [0, V).
/// Determinism: the gradient adds rows in the order of ids.
[[nodiscard]] at::Tensor embedding(const at::Tensor& weight, std::span<const std::int32_t> ids);

/// How query, key and value heads lie in a row: [heads | kv_heads | kv_heads] of head_dim each.
struct HeadLayout {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  [[nodiscard]] std::int64_t row() const { return (heads + 2 * kv_heads) * head_dim; }
};

/// The normalisation of query or key heads; an undefined weight means none.
struct HeadNorm {
  at::Tensor weight;  ///< [head_dim]
  double eps = 0;
  double offset = 0;
};

/// cos and sin of every row's position. Shapes: [T, rotary / 2]; undefined where nothing rotates.
struct RopeRows {
  at::Tensor cos;
  at::Tensor sin;
};

/// Normalises query and key heads (where asked), then rotates their leading channels (half-split); values pass.
/// Shapes: qkv and result [T, layout.row()]. Without recording, `qkv` itself is changed and returned. `where`: of the norms.
[[nodiscard]] at::Tensor normalise_and_rotate(at::Tensor qkv, const HeadLayout& layout, const HeadNorm& q_norm,
                                              const HeadNorm& k_norm, const RopeRows& rope, Where where = Where::kHost);

}  // namespace troupe::tensor
