/// @file
/// Mixtures of experts: routing, grouped products, and products with one matrix per head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/offload.h"
#include "tensor/parts.h"

namespace troupe::tensor {

/// Who goes where.
struct Routing {
  std::shared_ptr<const std::vector<std::int32_t>> choices;  ///< [T, chosen], best first.
  at::Tensor weights;                                        ///< [T, chosen], differentiable in the logits.
};

/// Chooses by the logits [T, E]; `correction` (may be undefined) helps to choose only; `fixed` (may be empty) names the
/// experts instead. Sizes and rules come from `rule`, whose pointers are not read.
[[nodiscard]] Routing route(const at::Tensor& logits, const at::Tensor& correction,
                            std::span<const std::int32_t> fixed, const kernels::Router& rule, Where where = Where::kHost);

/// How the weights of all experts lie.
enum class ExpertLayout : std::uint8_t {
  kRows,     ///< gate_up [E, 2I, D] with the gate's rows first, down [E, D, I].
  kColumns,  ///< gate_up [E, D, 2I] with gate and up in turn, down [E, I, D].
};

/// The weights of the experts of a layer; biases and the norm may be undefined.
struct ExpertWeights {
  at::Tensor gate_up, down;
  at::Tensor gate_up_bias;  ///< [E, 2I]
  at::Tensor down_bias;     ///< [E, D]
  at::Tensor norm;          ///< [D]: an expert's result y becomes n((1 + norm) y).
  double norm_eps = 0;
  ExpertLayout layout = ExpertLayout::kRows;
  GatedUnit unit;
};

/// One packed matrix per expert or head, or all of them on the GPU. Packed or copied at the first use, and again after
/// `invalidate`.
class PackedGroup {
 public:
  using Matrices = std::vector<kernels::PackedMatrix>;
  void invalidate() {
    fresh_ = turned_fresh_ = false;
    on_device_.invalidate();
  }
  void set_precision(kernels::Precision precision);
  /// Shape: weights [groups, n, k] of any strides.
  [[nodiscard]] const Matrices& get(const at::Tensor& weights);
  /// The transpose of each, for the backward pass.
  [[nodiscard]] const Matrices& turned(const at::Tensor& weights);
  /// Each of them, or its transpose, as the products of `where` need it.
  [[nodiscard]] std::vector<kernels::Factor> factors(const at::Tensor& weights, Where where, bool transposed);

 private:
  Matrices matrices_, turned_;
  DeviceWeights on_device_;
  kernels::Precision precision_ = kernels::Precision::kFloat32;
  bool fresh_ = false, turned_fresh_ = false;
};

/// Sum over the chosen experts of weight * expert(x). Shapes: x [T, D], result [T, D].
/// Determinism: a row depends on its own x and routing; its experts are added in the order of the choices.
/// Cost: each expert's rows go through it together. On the GPU all experts' rows do, and what is between the two products
/// stays there unless there are biases; the gradient goes expert by expert.
[[nodiscard]] at::Tensor experts(const at::Tensor& x, const Routing& routing, const ExpertWeights& weights,
                                 const std::shared_ptr<PackedGroup>& packed_gate_up,
                                 const std::shared_ptr<PackedGroup>& packed_down, Where where = Where::kHost);

/// y[t, g] = W_g x[t, g]. Shapes: x [T, groups * k], weights [groups, n, k] (a view will do), result [T, groups * n].
[[nodiscard]] at::Tensor group_linear(const at::Tensor& x, const at::Tensor& weights,
                                      const std::shared_ptr<PackedGroup>& packed, Where where = Where::kHost);

}  // namespace troupe::tensor
