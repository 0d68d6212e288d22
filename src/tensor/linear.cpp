#include "tensor/linear.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "base/check.h"
#include "tensor/workspace.h"

namespace troupe::tensor {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
constexpr std::size_t kWeightsMax = 3;

/// The transpose of the weights, asked for in the backward pass.
using Turned = std::function<kernels::Factor()>;
struct HeldTurned : torch::CustomClassHolder {
  HeldTurned(Turned t, Where w) : turned(std::move(t)), where(w) {}
  Turned turned;
  Where where;
};

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w0,
                            const std::optional<at::Tensor>& w1, const std::optional<at::Tensor>& w2,
                            const kernels::Factor& packed, Turned turned, Where where) {
    const at::Tensor rows = x.contiguous();
    ctx->save_for_backward({rows, w0, w1.value_or(at::Tensor()), w2.value_or(at::Tensor())});
    ctx->saved_data["turned"] = c10::IValue::make_capsule(c10::make_intrusive<HeldTurned>(std::move(turned), where));
    return multiply(rows, packed, true, where);
  }

  /// dX = dY W; dW = dY^T X, the rows of all weights below each other.
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto capsule = ctx->saved_data["turned"].toCapsule();
    const auto& held = static_cast<const HeldTurned&>(*capsule);
    const Where where = held.where;
    const kernels::Factor turned = held.turned();
    const at::Tensor dy = gradients[0].contiguous();
    const Staged slopes(where, dy);  // both products read it
    variable_list result(7);
    if (ctx->needs_input_grad(0)) {
      result[0] = at::empty({dy.size(0), turned.rows()}, dy.options());
      done(kernels::run(where, kernels::Product{slopes.data(), result[0].data_ptr<float>(), dy.size(0), turned}));
    }
    bool wanted = false;
    for (std::size_t i = 0; i < kWeightsMax; ++i) wanted |= saved[1 + i].defined() && ctx->needs_input_grad(1 + i);
    if (!wanted) return result;
    const at::Tensor& x = saved[0];
    const at::Tensor dw = at::empty({dy.size(1), x.size(1)}, x.options());
    done(kernels::run(where, kernels::WeightGradient{slopes.data(), x.data_ptr<float>(), dw.data_ptr<float>(), x.size(0), dy.size(1),
                                                     x.size(1), 0, 0, false, turned.precision()}));
    for (std::size_t i = 0, row = 0; i < kWeightsMax && saved[1 + i].defined(); ++i) {
      const std::int64_t rows = saved[1 + i].size(0);
      if (ctx->needs_input_grad(1 + i)) result[1 + i] = dw.narrow(0, static_cast<std::int64_t>(row), rows);
      row += static_cast<std::size_t>(rows);
    }
    return result;
  }
};

/// Contiguous weights and where they lie.
struct Stacked {
  explicit Stacked(std::span<const at::Tensor> weights) : count(static_cast<std::int64_t>(weights.size())) {
    TROUPE_CHECK(!weights.empty() && weights.size() <= kWeightsMax, "one to three weights");
    for (std::size_t i = 0; i < weights.size(); ++i) {
      rows[i] = weights[i].detach().contiguous();
      TROUPE_CHECK(rows[i].dim() == 2 && rows[i].size(1) == rows[0].size(1), "stacked weights have the same width");
      parts[i] = {rows[i].data_ptr<float>(), rows[i].size(0)};
    }
  }
  std::array<at::Tensor, kWeightsMax> rows;
  std::array<kernels::PackedMatrix::Part, kWeightsMax> parts{};
  std::int64_t count;
};

}  // namespace

at::Tensor multiply(const at::Tensor& x, const kernels::Factor& w, bool recorded, Where where) {
  TROUPE_CHECK(x.dim() == 2 && x.size(1) == w.cols(), "the input of a linear layer must be as wide as its weight");
  const at::Tensor rows = x.contiguous();
  at::Tensor y =
      recorded ? at::empty({rows.size(0), w.rows()}, rows.options()) : unrecorded_rows(rows.size(0), w.rows());
  done(kernels::run(where, kernels::Product{rows.data_ptr<float>(), y.data_ptr<float>(), rows.size(0), w}));
  return y;
}

void PackedWeights::set_precision(kernels::Precision precision) {
  precision_ = precision;
  invalidate();
}

const kernels::PackedMatrix& PackedWeights::get(std::span<const at::Tensor> weights) {
  if (fresh_) return matrix_;
  const Stacked stacked(weights);
  matrix_.pack(stacked.parts.data(), stacked.count, stacked.rows[0].size(1), precision_);
  fresh_ = true;
  return matrix_;
}

const kernels::PackedMatrix& PackedWeights::turned(std::span<const at::Tensor> weights) {
  if (turned_fresh_) return turned_;
  const Stacked stacked(weights);
  turned_.pack_transposed(stacked.parts.data(), stacked.count, stacked.rows[0].size(1), precision_);
  turned_fresh_ = true;
  return turned_;
}

const std::vector<kernels::PackedMatrix>& PackedWeights::turned_blocks(const at::Tensor& weight) {
  if (blocks_fresh_) return turned_blocks_;
  const Stacked stacked({&weight, 1});
  const std::int64_t rows = weight.size(0), width = weight.size(1);
  turned_blocks_.resize(static_cast<std::size_t>((rows + kBlockRows - 1) / kBlockRows));
  for (std::int64_t first = 0; first < rows; first += kBlockRows) {
    const kernels::PackedMatrix::Part part{stacked.parts[0].w + first * width, std::min(kBlockRows, rows - first)};
    turned_blocks_[static_cast<std::size_t>(first / kBlockRows)].pack_transposed(&part, 1, width, precision_);
  }
  blocks_fresh_ = true;
  return turned_blocks_;
}

kernels::DeviceMatrix PackedWeights::on_device(std::span<const at::Tensor> weights, Where where, bool transposed) {
  if (where == Where::kHost) return {};
  std::int64_t rows = 0;
  for (const at::Tensor& weight : weights) rows += weight.size(0);
  const std::int64_t width = weights[0].size(1);
  return {on_device_.get(weights), transposed ? width : rows, transposed ? rows : width, 0, transposed, precision_};
}

kernels::Factor PackedWeights::factor(std::span<const at::Tensor> weights, Where where) {
  return {where == Where::kDevice ? nullptr : &get(weights), on_device(weights, where, false)};
}

kernels::Factor PackedWeights::turned_factor(std::span<const at::Tensor> weights, Where where) {
  return {where == Where::kDevice ? nullptr : &turned(weights), on_device(weights, where, true)};
}

std::vector<kernels::Factor> PackedWeights::turned_block_factors(const at::Tensor& weight, Where where) {
  const std::int64_t rows = weight.size(0);
  std::vector<kernels::Factor> blocks(static_cast<std::size_t>((rows + kBlockRows - 1) / kBlockRows));
  const kernels::DeviceMatrix whole = on_device({&weight, 1}, where, true);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (where != Where::kDevice) blocks[i].packed = &turned_blocks(weight)[i];
    const std::int64_t first = static_cast<std::int64_t>(i) * kBlockRows;
    blocks[i].device = whole;
    blocks[i].device.k = std::min(kBlockRows, rows - first);
    if (whole.data != nullptr) blocks[i].device.data += first * weight.size(1);
  }
  return blocks;
}

at::Tensor linear(const at::Tensor& x, std::span<const at::Tensor> weights,
                  const std::shared_ptr<PackedWeights>& packed, Where where) {
  const kernels::Factor factor = packed->factor(weights, where);
  if (!at::GradMode::is_enabled()) return multiply(x, factor, false, where);
  const auto weight = [&](std::size_t i) { return i < weights.size() ? std::optional(weights[i]) : std::nullopt; };
  std::vector<at::Tensor> plain;
  for (const at::Tensor& w : weights) plain.push_back(w.detach());
  Turned turned = [packed, where, plain = std::move(plain)] { return packed->turned_factor(plain, where); };
  return LinearFunction::apply(x, weights[0], weight(1), weight(2), factor, std::move(turned), where);
}

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const kernels::Factor& packed,
                   const kernels::Factor& turned, Where where) {
  if (!at::GradMode::is_enabled()) return multiply(x, packed, false, where);
  return LinearFunction::apply(x, weight, std::optional<at::Tensor>(), std::optional<at::Tensor>(), packed,
                               Turned([turned] { return turned; }), where);
}

}  // namespace troupe::tensor
