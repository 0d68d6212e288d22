#include "tensor/linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>

#include "base/check.h"
#include "tensor/workspace.h"

namespace troupe::tensor {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
constexpr std::size_t kWeightsMax = 3;

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w0,
                            const std::optional<at::Tensor>& w1, const std::optional<at::Tensor>& w2,
                            const kernels::PackedMatrix* packed) {
    ctx->save_for_backward({x, w0, w1.value_or(at::Tensor()), w2.value_or(at::Tensor())});
    return multiply(x, *packed, true);
  }

  /// dX = sum_i dY_i W_i; dW_i = dY_i^T X, with dY_i the columns of weight i.
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list result(5);
    std::int64_t column = 0;
    for (std::size_t i = 0; i < kWeightsMax && saved[1 + i].defined(); ++i) {
      const at::Tensor& w = saved[1 + i];
      const at::Tensor dy = gradients[0].narrow(1, column, w.size(0));
      column += w.size(0);
      if (ctx->needs_input_grad(0)) {
        if (result[0].defined())
          result[0].addmm_(dy, w);
        else
          result[0] = at::mm(dy, w);
      }
      if (ctx->needs_input_grad(1 + i)) result[1 + i] = at::mm(dy.t(), saved[0]);
    }
    return result;
  }
};

}  // namespace

at::Tensor multiply(const at::Tensor& x, const kernels::PackedMatrix& w, bool recorded) {
  TROUPE_CHECK(x.dim() == 2 && x.size(1) == w.cols(), "the input of a linear layer must be as wide as its weight");
  const at::Tensor rows = x.contiguous();
  at::Tensor y =
      recorded ? at::empty({rows.size(0), w.rows()}, rows.options()) : unrecorded_rows(rows.size(0), w.rows());
  kernels::matmul(rows.data_ptr<float>(), rows.size(0), w, y.data_ptr<float>());
  return y;
}

const kernels::PackedMatrix& PackedWeights::get(std::span<const at::Tensor> weights) {
  if (fresh_) return matrix_;
  TROUPE_CHECK(!weights.empty() && weights.size() <= kWeightsMax, "one to three weights");
  std::array<at::Tensor, kWeightsMax> rows;
  std::array<kernels::PackedMatrix::Part, kWeightsMax> parts{};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    rows[i] = weights[i].detach().contiguous();
    TROUPE_CHECK(rows[i].dim() == 2 && rows[i].size(1) == rows[0].size(1), "stacked weights have the same width");
    parts[i] = {rows[i].data_ptr<float>(), rows[i].size(0)};
  }
  matrix_.pack(parts.data(), static_cast<std::int64_t>(weights.size()), rows[0].size(1));
  fresh_ = true;
  return matrix_;
}

at::Tensor linear(const at::Tensor& x, std::span<const at::Tensor> weights,
                  const std::shared_ptr<PackedWeights>& packed) {
  const kernels::PackedMatrix& matrix = packed->get(weights);
  if (!at::GradMode::is_enabled()) return multiply(x, matrix, false);
  const auto weight = [&](std::size_t i) { return i < weights.size() ? std::optional(weights[i]) : std::nullopt; };
  return LinearFunction::apply(x, weights[0], weight(1), weight(2), &matrix);
}

}  // namespace troupe::tensor
