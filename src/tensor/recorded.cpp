#include "tensor/recorded.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

namespace troupe::tensor {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct HeldFormula : torch::CustomClassHolder {
  explicit HeldFormula(Formula f) : formula(std::move(f)) {}
  Formula formula;
};

/// Not seen as inputs by the engine: neither is a tensor argument.
struct ValueAndFormula {
  at::Tensor value;
  Formula formula;
};

struct RecordedFunction : torch::autograd::Function<RecordedFunction> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList inputs, const ValueAndFormula& held) {
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["formula"] = c10::IValue::make_capsule(c10::make_intrusive<HeldFormula>(held.formula));
    return held.value;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto capsule = ctx->saved_data["formula"].toCapsule();
    const Formula& formula = static_cast<const HeldFormula&>(*capsule).formula;
    variable_list inputs, wanted;
    for (std::size_t i = 0; i < saved.size(); ++i) {
      inputs.push_back(saved[i].detach());
      if (ctx->needs_input_grad(i)) wanted.push_back(inputs.back().requires_grad_(true));
    }
    variable_list result(saved.size() + 1);
    if (wanted.empty()) return result;
    const at::AutoGradMode record(true);
    const at::Tensor y = formula(inputs);
    const variable_list found =
        torch::autograd::grad({y}, wanted, {gradients[0].view_as(y)}, std::nullopt, false, true);
    for (std::size_t i = 0, next = 0; i < saved.size(); ++i)
      if (ctx->needs_input_grad(i)) result[i] = found[next++];
    return result;
  }
};

struct HeldGradient : torch::CustomClassHolder {
  explicit HeldGradient(Gradient g) : gradient(std::move(g)) {}
  Gradient gradient;
};

struct ValueAndGradient {
  at::Tensor value;
  Gradient gradient;
};

struct KernelFunction : torch::autograd::Function<KernelFunction> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList inputs, const ValueAndGradient& held) {
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["gradient"] = c10::IValue::make_capsule(c10::make_intrusive<HeldGradient>(held.gradient));
    return held.value;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto capsule = ctx->saved_data["gradient"].toCapsule();
    variable_list result = static_cast<const HeldGradient&>(*capsule).gradient(saved, gradients[0].contiguous());
    result.resize(saved.size() + 1);
    return result;
  }
};

}  // namespace

at::Tensor recorded_with(at::Tensor value, std::vector<at::Tensor> inputs, Gradient gradient) {
  if (!at::GradMode::is_enabled()) return value;
  if (value.requires_grad()) value = value.detach();
  return KernelFunction::apply(at::TensorList(inputs), ValueAndGradient{std::move(value), std::move(gradient)});
}

at::Tensor recorded(at::Tensor value, std::vector<at::Tensor> inputs, Formula formula) {
  if (!at::GradMode::is_enabled()) return value;
  if (value.requires_grad()) value = value.detach();
  return RecordedFunction::apply(at::TensorList(inputs), ValueAndFormula{std::move(value), std::move(formula)});
}

}  // namespace troupe::tensor
