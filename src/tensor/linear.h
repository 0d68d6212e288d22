/// @file
/// Linear layers on our own row-invariant matrix products.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "kernels/gemm.h"
#include "kernels/offload.h"
#include "tensor/place.h"

namespace troupe::tensor {

/// One weight, or several of the same input width below each other (q|k|v, gate|up), in the order in which kernels read
/// them, and on the GPU as they are. Packed or copied there at the first use and again after `invalidate`, never in between:
/// whoever changes a weight's numbers must say so.
class PackedWeights {
 public:
  void invalidate() {
    fresh_ = turned_fresh_ = blocks_fresh_ = false;
    on_device_.invalidate();
  }
  /// What products with these weights are rounded to, forward and backward.
  void set_precision(kernels::Precision precision);
  [[nodiscard]] kernels::Precision precision() const { return precision_; }
  /// Shapes: weights_i [n_i, k].
  [[nodiscard]] const kernels::PackedMatrix& get(std::span<const at::Tensor> weights);
  /// Their transpose, for the backward pass.
  [[nodiscard]] const kernels::PackedMatrix& turned(std::span<const at::Tensor> weights);
  /// The transposes of kBlockRows rows each of one weight: a product with all rows of a large vocabulary at once would
  /// read everything from memory for every few rows of x.
  [[nodiscard]] const std::vector<kernels::PackedMatrix>& turned_blocks(const at::Tensor& weight);
  static constexpr std::int64_t kBlockRows = 2048;

  /// The same three as the products of `where` need them.
  [[nodiscard]] kernels::Factor factor(std::span<const at::Tensor> weights, Where where);
  [[nodiscard]] kernels::Factor turned_factor(std::span<const at::Tensor> weights, Where where);
  [[nodiscard]] std::vector<kernels::Factor> turned_block_factors(const at::Tensor& weight, Where where);

 private:
  [[nodiscard]] kernels::DeviceMatrix on_device(std::span<const at::Tensor> weights, Where where, bool transposed);
  kernels::PackedMatrix matrix_, turned_;
  std::vector<kernels::PackedMatrix> turned_blocks_;
  kernels::Precision precision_ = kernels::Precision::kFloat32;
  bool fresh_ = false, turned_fresh_ = false, blocks_fresh_ = false;
  DeviceWeights on_device_;
};

/// x W^T, no gradient. `recorded`: the result becomes part of a graph. Shapes: x [T, k], w [n, k].
[[nodiscard]] at::Tensor multiply(const at::Tensor& x, const kernels::Factor& w, bool recorded, Where where);

/// y = x [W_0; W_1; ...]^T. Shapes: x [T, k], at most three weights [n_i, k], y [T, sum n_i].
/// Differentiable in x and the weights.
/// Determinism: a row of y depends on its row of x only (kernels::matmul); gradients do not depend on threads.
[[nodiscard]] at::Tensor linear(const at::Tensor& x, std::span<const at::Tensor> weights,
                                const std::shared_ptr<PackedWeights>& packed, Where where = Where::kHost);

/// The same with one weight that somebody else has packed: `packed` and, for the backward pass, its transpose `turned`.
/// What they name must outlive the graph.
[[nodiscard]] at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const kernels::Factor& packed,
                                 const kernels::Factor& turned, Where where);

}  // namespace troupe::tensor
