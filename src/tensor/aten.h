/// @file
/// The operations of a dense decoder by LibTorch's operators, and the choice between them and our kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "kernels/gemm.h"
#include "tensor/attention.h"
#include "tensor/autograd.h"
#include "tensor/options.h"

namespace troupe::tensor {

namespace aten {

/// As tensor::linear; `precision`: what the operands are cast to.
[[nodiscard]] at::Tensor linear(const at::Tensor& x, std::span<const at::Tensor> weights, kernels::Precision precision);
/// As tensor::rmsnorm.
[[nodiscard]] at::Tensor rmsnorm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset);
/// As tensor::swiglu.
[[nodiscard]] at::Tensor swiglu(const at::Tensor& gate_up);
/// As tensor::attention, by scaled_dot_product_attention, a segment at a time, in `precision`.
[[nodiscard]] at::Tensor attention(const at::Tensor& qkv, const HeadLayout& layout, float scale, std::span<const RowSegment> segments,
                                   kernels::Precision precision = kernels::Precision::kFloat32);

} // namespace aten

/// Throws std::runtime_error naming the operation when any element differs by more than `tolerance` times the largest one, or is not a number
/// on one side only.
void expect_close(const char* operation, const at::Tensor& ours, const at::Tensor& theirs, double tolerance);

/// ours(where) or theirs(), as `backend` says. Both give a tensor.
template <class Ours, class Theirs>
at::Tensor choose(Backend backend, const char* operation, double tolerance, Ours&& ours, Theirs&& theirs) {
  if (backend == Backend::kAten || backend == Backend::kChunked) return theirs();
  const at::Tensor result = ours(where_of(backend));
  if (backend != Backend::kCheck) return result;
  const NoGrad no_grad;
  expect_close(operation, result.detach(), theirs(), tolerance);
  return result;
}

} // namespace troupe::tensor
