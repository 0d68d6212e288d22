/// @file
/// The two things training needs of the autograd engine, without its headers.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace troupe::tensor {

/// While it lives, no operation of this thread records what a backward pass would need.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

/// Whether operations of this thread record.
[[nodiscard]] bool grad_enabled();

/// Adds d(sum_i <outputs_i, gradients_i>) to the `.grad()` of every leaf. Frees what the forward pass kept.
/// Precondition: outputs were computed with gradients recorded; gradients have their shapes.
void backward(std::span<const at::Tensor> outputs, std::span<const at::Tensor> gradients);

/// Memory of a tensor of ours: float32, contiguous, on the CPU.
[[nodiscard]] std::span<float> floats(const at::Tensor& tensor);

}  // namespace troupe::tensor
