/// @file
/// Small differentiable operations that parts of some families need, on our own kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tensor/ops.h"

namespace troupe::tensor {

[[nodiscard]] at::Tensor sigmoid(const at::Tensor& x);
[[nodiscard]] at::Tensor softplus(const at::Tensor& x);
[[nodiscard]] at::Tensor silu(const at::Tensor& x);
[[nodiscard]] at::Tensor exponential(const at::Tensor& x);

/// y = (up + up_offset) * gate * sigmoid(alpha gate), with gate cut above `limit` and up on both sides (0: not cut).
struct GatedUnit {
  double limit = 0;
  double alpha = 1;
  double up_offset = 0;
  [[nodiscard]] bool plain() const { return limit == 0 && alpha == 1 && up_offset == 0; }
};
/// Shapes: gate_up [T, 2I] (gate first), result [T, I].
[[nodiscard]] at::Tensor gated_unit(const at::Tensor& gate_up, const GatedUnit& unit, Where where = Where::kHost);
/// The same on floats of rows, not recorded. `gate_up` and `y` may lie on the device.
void gated_unit(const float* gate_up, float* y, std::int64_t rows, std::int64_t cols, const GatedUnit& unit, Where where);
/// The same in LibTorch's operations.
[[nodiscard]] at::Tensor gated_unit_formula(const at::Tensor& gate_up, const GatedUnit& unit);

/// Rotates neighbouring channels of the last 2 * pairs channels of each head. Shapes: x [T, heads * head_dim].
[[nodiscard]] at::Tensor rotate_pairs(const at::Tensor& x, std::int64_t heads, const RopeRows& rope, bool inverse = false);

/// Every `width` neighbouring channels are a vector of their own: x / rms(x), without a weight. Shapes: [T, n * width].
[[nodiscard]] at::Tensor normalise(const at::Tensor& x, std::int64_t width, double eps);

/// The mixing weights of hyper-connections. Shapes: mix [T, 2n + n^2], base [2n + n^2], scale [3]; result as mix:
/// pre | post | C (kernels/streams.h).
[[nodiscard]] at::Tensor hyper_mix(const at::Tensor& mix, const at::Tensor& base, const at::Tensor& scale,
                                   std::int64_t streams, std::int64_t iterations, double eps);

}  // namespace troupe::tensor
