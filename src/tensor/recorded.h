/// @file
/// A value from a kernel with the gradient of a formula (the kernel fixes the order of its sums, LibTorch differentiates)
/// or of another kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

namespace troupe::tensor {

/// The same function as a kernel, in LibTorch's operations. It is called in the backward pass, with gradients recorded.
using Formula = std::function<at::Tensor(std::span<const at::Tensor> inputs)>;

/// `value`, whose gradient by `inputs` is that of `formula(inputs)`; just `value` where nothing is recorded.
/// Cost: the formula runs once more in the backward pass; only `inputs` and what it captures are kept.
[[nodiscard]] at::Tensor recorded(at::Tensor value, std::vector<at::Tensor> inputs, Formula formula);

/// The gradients of `inputs` that belong to `dvalue`, from kernels; undefined where there is none.
using Gradient = std::function<std::vector<at::Tensor>(std::span<const at::Tensor> inputs, const at::Tensor& dvalue)>;

/// The same with a gradient of its own. `gradient` must not hold `value` itself.
[[nodiscard]] at::Tensor recorded_with(at::Tensor value, std::vector<at::Tensor> inputs, Gradient gradient);

}  // namespace troupe::tensor
