#include "tensor/head.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/check.h"
#include "kernels/offload.h"
#include "kernels/pointwise.h"

namespace troupe::tensor {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Logits that are held at a time: what a cache keeps, or, where a vocabulary is so large that this would be a few rows and every block of them
// would read all weights, as many as read them about as often as a plain product does.
constexpr std::int64_t kBlockFloats = 4 << 20, kBlockFloatsMax = 40 << 20;
constexpr std::int64_t kRowsWanted = 256, kRowsMax = 1024;

/// What is no tensor: the backward pass multiplies with the same packed weights.
struct Plan {
  std::shared_ptr<PackedWeights> packed;
  std::vector<std::int32_t> targets;
  float temperature = 1;
  std::int64_t vocab = 0;
  LogitRule rule;
  Where where = Where::kHost;
};
struct HeldPlan : torch::CustomClassHolder {
  explicit HeldPlan(Plan p) : plan(std::move(p)) {}
  Plan plan;
};

/// Memory of the host as a tensor.
at::Tensor rows_at(float* data, std::int64_t rows, std::int64_t columns) {
  return at::from_blob(data, {rows, columns}, at::TensorOptions().dtype(at::kFloat));
}

std::int64_t block_rows(std::int64_t columns) {
  const std::int64_t wanted = std::min(kRowsWanted, kBlockFloatsMax / columns);
  return std::clamp<std::int64_t>(std::max(wanted, kBlockFloats / columns), 1, kRowsMax);
}

/// Logits of a block of rows. The rule, and its slope, are the host's.
Where place_of_logits(const Plan& plan) {
  return plan.rule.plain() || plan.where != Where::kDevice ? plan.where : Where::kHost;
}

/// Calls f(first row, rows, their logits) block by block. Shape: logits [rows, V], where place_of_logits says.
template <class F>
void each_block(const at::Tensor& hidden, const kernels::Factor& weights, const Plan& plan, F&& f) {
  const std::int64_t step = block_rows(weights.rows());
  const Scratch logits(place_of_logits(plan), std::min(step, hidden.size(0)) * weights.rows());
  for (std::int64_t first = 0; first < hidden.size(0); first += step) {
    const std::int64_t rows = std::min(step, hidden.size(0) - first);
    done(kernels::run(plan.where, kernels::Product{hidden.data_ptr<float>() + first * hidden.size(1), logits.data(), rows, weights}));
    if (!plan.rule.plain()) apply_logit_rule(rows_at(logits.data(), rows, weights.rows()), plan.rule);
    f(first, rows, logits.data());
  }
}

struct Rows {
  at::Tensor logprob, entropy, lse;
};

/// Derivative of a logit by its product, from the logit.
at::Tensor rule_slope(const at::Tensor& logits, const LogitRule& rule) {
  if (rule.cap == 0) return logits.new_full({1, 1}, rule.multiplier);
  return (logits / rule.cap).square_().neg_().add_(1).mul_(rule.multiplier);
}

Rows score_rows(const at::Tensor& hidden, const kernels::Factor& weights, const Plan& plan) {
  Rows rows;
  for (at::Tensor* one : {&rows.logprob, &rows.entropy, &rows.lse})
    *one = at::empty({hidden.size(0)}, hidden.options());
  each_block(hidden, weights, plan, [&](std::int64_t first, std::int64_t count, const float* logits) {
    kernels::LogprobForward args;
    args.logits = logits;
    args.targets = plan.targets.data() + first;
    args.logprob = rows.logprob.data_ptr<float>() + first;
    args.entropy = rows.entropy.data_ptr<float>() + first;
    args.lse = rows.lse.data_ptr<float>() + first;
    args.rows = count;
    args.vocab = plan.vocab;
    args.ldl = weights.rows();
    args.temperature = plan.temperature;
    done(kernels::run(plan.where, args));
  });
  return rows;
}

/// dX = dlogits W, summed over blocks of W's rows in their order. Shapes: dlogits [rows, V], dx [rows, width] and part of
/// that size.
void input_gradient(const float* dlogits, std::int64_t rows, std::int64_t columns, const std::vector<kernels::Factor>& turned,
                    float* dx, float* part, Where where) {
  const std::int64_t width = turned[0].rows();
  done(kernels::run(where, kernels::Product{dlogits, dx, rows, turned[0], columns, width}));
  for (std::size_t block = 1; block < turned.size(); ++block) {
    const float* from = dlogits + static_cast<std::int64_t>(block) * PackedWeights::kBlockRows;
    done(kernels::run(where, kernels::Product{from, part, rows, turned[block], columns, width}));
    done(kernels::add(where, part, dx, rows * width));
  }
}

/// The gradients of a block of rows after another.
class HeadGradients {
 public:
  HeadGradients(const Plan& plan, const at::Tensor& hidden, const at::Tensor& weight, bool of_hidden, bool of_weight)
      : plan_(plan), hidden_(hidden), weight_(weight) {
    const std::int64_t rows = std::min(block_rows(weight.size(0)), hidden.size(0)), width = hidden.size(1);
    if (of_hidden) {
      dhidden = at::empty_like(hidden);
      turned_ = plan.packed->turned_block_factors(weight, plan.where);
      part_.emplace(plan.where, turned_.size() > 1 ? rows * width : 1);
      if (plan.where == Where::kDevice) dx_.emplace(plan.where, rows * width);
    }
    if (of_weight) dweight = hidden.size(0) > 0 ? at::empty_like(weight) : at::zeros_like(weight);
    if (of_weight && plan.where == Where::kDevice) dw_.emplace(plan.where, weight.numel());
  }

  /// Shape: dlogits [count, V].
  void add(std::int64_t first, std::int64_t count, const float* dlogits) {
    const std::int64_t width = hidden_.size(1), columns = weight_.size(0);
    if (dhidden.defined()) {
      float* home = dhidden.data_ptr<float>() + first * width;
      float* dx = dx_ ? dx_->data() : home;
      input_gradient(dlogits, count, columns, turned_, dx, part_->data(), plan_.where);
      if (dx_) dx_->read(home, count * width);
    }
    if (!dweight.defined()) return;
    float* dw = dw_ ? dw_->data() : dweight.data_ptr<float>();
    done(kernels::run(plan_.where, kernels::WeightGradient{dlogits, hidden_.data_ptr<float>() + first * width, dw, count, columns,
                                                           width, 0, 0, first > 0, plan_.packed->precision()}));
    if (dw_ && first + count == hidden_.size(0)) dw_->read(dweight.data_ptr<float>(), dweight.numel());
  }

  at::Tensor dhidden, dweight;  ///< Undefined where they are not wanted.

 private:
  const Plan& plan_;
  const at::Tensor& hidden_;
  const at::Tensor& weight_;
  std::vector<kernels::Factor> turned_;
  std::optional<Scratch> dx_, part_, dw_;
};

struct ScoreFunction : torch::autograd::Function<ScoreFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& weight, Plan plan) {
    const Rows rows = score_rows(hidden, plan.packed->factor({&weight, 1}, plan.where), plan);
    ctx->save_for_backward({hidden, weight, rows.entropy, rows.lse});
    ctx->saved_data["plan"] = c10::IValue::make_capsule(c10::make_intrusive<HeldPlan>(std::move(plan)));
    return {rows.logprob, rows.entropy};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto capsule = ctx->saved_data["plan"].toCapsule();
    const Plan& plan = static_cast<const HeldPlan&>(*capsule).plan;
    const at::Tensor& hidden = saved[0];
    const at::Tensor& weight = saved[1];
    const auto dense = [&](const at::Tensor& g) { return g.defined() ? g.contiguous() : at::zeros_like(saved[2]); };
    const at::Tensor dlogprob = dense(gradients[0]);
    const at::Tensor dentropy = dense(gradients[1]);
    HeadGradients sums(plan, hidden, weight, ctx->needs_input_grad(0), ctx->needs_input_grad(1));
    each_block(hidden, plan.packed->factor({&weight, 1}, plan.where), plan,
               [&](std::int64_t first, std::int64_t count, float* logits) {
                 kernels::LogprobBackward args;
                 args.logits = args.dlogits = logits;
                 args.targets = plan.targets.data() + first;
                 args.lse = saved[3].data_ptr<float>() + first;
                 args.entropy = saved[2].data_ptr<float>() + first;
                 args.dlogprob = dlogprob.data_ptr<float>() + first;
                 args.dentropy = dentropy.data_ptr<float>() + first;
                 args.rows = count;
                 args.vocab = plan.vocab;
                 args.ldl = weight.size(0);
                 args.temperature = plan.temperature;
                 const at::Tensor slope =
                     plan.rule.plain() ? at::Tensor() : rule_slope(rows_at(logits, count, weight.size(0)), plan.rule);
                 done(kernels::run(plan.where, args));
                 if (slope.defined()) rows_at(logits, count, weight.size(0)).mul_(slope);
                 sums.add(first, count, logits);
               });
    return {sums.dhidden, sums.dweight, at::Tensor()};
  }
};

}  // namespace

void apply_logit_rule(const at::Tensor& products, const LogitRule& rule) {
  if (rule.plain()) return;
  kernels::softcap(products.data_ptr<float>(), products.numel(), static_cast<float>(rule.multiplier),
                   static_cast<float>(rule.cap));
}

Scores score(const at::Tensor& hidden, const at::Tensor& weight, const std::shared_ptr<PackedWeights>& packed,
             std::span<const std::int32_t> targets, float temperature, std::int64_t vocab, const LogitRule& rule, Where where) {
  TROUPE_CHECK(hidden.dim() == 2 && hidden.size(1) == weight.size(1), "hidden rows must be as wide as the head");
  TROUPE_CHECK(hidden.size(0) == static_cast<std::int64_t>(targets.size()), "one target per hidden row");
  TROUPE_CHECK(temperature > 0, "the temperature must be positive");
  TROUPE_CHECK(std::all_of(targets.begin(), targets.end(), [&](std::int32_t t) { return t >= 0 && t < vocab; }),
               "a target lies outside the vocabulary");
  const at::Tensor rows = hidden.contiguous();
  Plan plan{packed, {targets.begin(), targets.end()}, temperature, vocab, rule, where};
  if (!at::GradMode::is_enabled()) {
    const Rows scored = score_rows(rows, packed->factor({&weight, 1}, where), plan);
    return {scored.logprob, scored.entropy};
  }
  const variable_list scored = ScoreFunction::apply(rows, weight, std::move(plan));
  return {scored[0], scored[1]};
}

}  // namespace troupe::tensor
