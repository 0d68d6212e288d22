#include "tensor/autograd.h"

#include <torch/csrc/autograd/autograd.h>

#include "base/check.h"

namespace troupe::tensor {

NoGrad::NoGrad() : before_(at::GradMode::is_enabled()) { at::GradMode::set_enabled(false); }
NoGrad::~NoGrad() { at::GradMode::set_enabled(before_); }

bool grad_enabled() { return at::GradMode::is_enabled(); }

void backward(std::span<const at::Tensor> outputs, std::span<const at::Tensor> gradients) {
  TROUPE_CHECK(outputs.size() == gradients.size(), "one gradient per output");
  const torch::autograd::variable_list roots(outputs.begin(), outputs.end());
  const torch::autograd::variable_list seeds(gradients.begin(), gradients.end());
  torch::autograd::backward(roots, seeds);
}

std::span<float> floats(const at::Tensor& tensor) {
  TROUPE_CHECK(tensor.scalar_type() == at::kFloat && tensor.is_contiguous() && tensor.device().is_cpu(),
               "a contiguous float32 tensor on the CPU");
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

}  // namespace troupe::tensor
