#include "tensor/head.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/gemm.h"
#include "kernels/logprob.h"
#include "kernels/norms.h"
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
};
struct HeldPlan : torch::CustomClassHolder {
  explicit HeldPlan(Plan p) : plan(std::move(p)) {}
  Plan plan;
};

std::int64_t block_rows(std::int64_t columns) {
  const std::int64_t wanted = std::min(kRowsWanted, kBlockFloatsMax / columns);
  return std::clamp<std::int64_t>(std::max(wanted, kBlockFloats / columns), 1, kRowsMax);
}

/// Calls f(first row, rows, their logits) block by block.
template <class F>
void each_block(const at::Tensor& hidden, const kernels::PackedMatrix& weights, const LogitRule& rule, F&& f) {
  const std::int64_t step = block_rows(weights.rows());
  const at::Tensor logits = at::empty({std::min(step, hidden.size(0)), weights.rows()}, hidden.options());
  for (std::int64_t first = 0; first < hidden.size(0); first += step) {
    const std::int64_t rows = std::min(step, hidden.size(0) - first);
    kernels::matmul(hidden.data_ptr<float>() + first * hidden.size(1), rows, weights, logits.data_ptr<float>());
    apply_logit_rule(logits.narrow(0, 0, rows), rule);
    f(first, rows, logits);
  }
}

struct Rows {
  at::Tensor logprob, entropy, lse;
};

/// Derivative of a logit by its product, from the logit; undefined: 1.
at::Tensor rule_slope(const at::Tensor& logits, const LogitRule& rule) {
  if (rule.plain()) return {};
  if (rule.cap == 0) return logits.new_full({1, 1}, rule.multiplier);
  return (logits / rule.cap).square_().neg_().add_(1).mul_(rule.multiplier);
}

Rows score_rows(const at::Tensor& hidden, const kernels::PackedMatrix& weights, const Plan& plan) {
  Rows rows;
  for (at::Tensor* one : {&rows.logprob, &rows.entropy, &rows.lse})
    *one = at::empty({hidden.size(0)}, hidden.options());
  each_block(hidden, weights, plan.rule, [&](std::int64_t first, std::int64_t count, const at::Tensor& logits) {
    kernels::LogprobForward args;
    args.logits = logits.data_ptr<float>();
    args.targets = plan.targets.data() + first;
    args.logprob = rows.logprob.data_ptr<float>() + first;
    args.entropy = rows.entropy.data_ptr<float>() + first;
    args.lse = rows.lse.data_ptr<float>() + first;
    args.rows = count;
    args.vocab = plan.vocab;
    args.ldl = weights.rows();
    args.temperature = plan.temperature;
    kernels::logprob_forward(args);
  });
  return rows;
}

/// dX = dlogits W, summed over blocks of W's rows in their order. Shapes: dlogits [rows, V], dx [rows, width].
void input_gradient(const float* dlogits, std::int64_t rows, std::int64_t ldl,
                    const std::vector<kernels::PackedMatrix>& turned, float* dx, std::vector<float>& part) {
  const std::int64_t width = turned[0].rows();
  kernels::matmul(dlogits, rows, turned[0], dx, width, ldl);
  part.resize(static_cast<std::size_t>(rows * width));
  for (std::size_t block = 1; block < turned.size(); ++block) {
    const float* from = dlogits + static_cast<std::int64_t>(block) * PackedWeights::kBlockRows;
    kernels::matmul(from, rows, turned[block], part.data(), width, ldl);
    kernels::add(part.data(), dx, rows * width);
  }
}

struct ScoreFunction : torch::autograd::Function<ScoreFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& weight, Plan plan) {
    const Rows rows = score_rows(hidden, plan.packed->get({&weight, 1}), plan);
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
    variable_list result(3);
    if (ctx->needs_input_grad(0)) result[0] = at::empty_like(hidden);
    if (ctx->needs_input_grad(1)) result[1] = hidden.size(0) > 0 ? at::empty_like(weight) : at::zeros_like(weight);
    const std::int64_t width = hidden.size(1);
    std::vector<float> part;
    each_block(hidden, plan.packed->get({&weight, 1}), plan.rule,
               [&](std::int64_t first, std::int64_t count, const at::Tensor& logits) {
                 kernels::LogprobBackward args;
                 args.logits = logits.data_ptr<float>();
                 args.targets = plan.targets.data() + first;
                 args.lse = saved[3].data_ptr<float>() + first;
                 args.entropy = saved[2].data_ptr<float>() + first;
                 args.dlogprob = dlogprob.data_ptr<float>() + first;
                 args.dentropy = dentropy.data_ptr<float>() + first;
                 const at::Tensor slope = rule_slope(logits.narrow(0, 0, count), plan.rule);
                 args.dlogits = logits.data_ptr<float>();
                 args.rows = count;
                 args.vocab = plan.vocab;
                 args.ldl = weight.size(0);
                 args.temperature = plan.temperature;
                 kernels::logprob_backward(args);
                 const at::Tensor dlogits = logits.narrow(0, 0, count);
                 if (slope.defined()) dlogits.mul_(slope);
                 if (result[0].defined())
                   input_gradient(args.dlogits, count, logits.size(1), plan.packed->turned_blocks(weight),
                                  result[0].data_ptr<float>() + first * width, part);
                 if (result[1].defined())
                   kernels::weight_gradient({args.dlogits, hidden.data_ptr<float>() + first * width,
                                             result[1].data_ptr<float>(), count, weight.size(0), width, 0, 0, first > 0,
                                             plan.packed->precision()});
               });
    return result;
  }
};

}  // namespace

void apply_logit_rule(const at::Tensor& products, const LogitRule& rule) {
  if (rule.plain()) return;
  kernels::softcap(products.data_ptr<float>(), products.numel(), static_cast<float>(rule.multiplier),
                   static_cast<float>(rule.cap));
}

Scores score(const at::Tensor& hidden, const at::Tensor& weight, const std::shared_ptr<PackedWeights>& packed,
             std::span<const std::int32_t> targets, float temperature, std::int64_t vocab, const LogitRule& rule) {
  TROUPE_CHECK(hidden.dim() == 2 && hidden.size(1) == weight.size(1), "hidden rows must be as wide as the head");
  TROUPE_CHECK(hidden.size(0) == static_cast<std::int64_t>(targets.size()), "one target per hidden row");
  TROUPE_CHECK(temperature > 0, "the temperature must be positive");
  TROUPE_CHECK(std::all_of(targets.begin(), targets.end(), [&](std::int32_t t) { return t >= 0 && t < vocab; }),
               "a target lies outside the vocabulary");
  const at::Tensor rows = hidden.contiguous();
  Plan plan{packed, {targets.begin(), targets.end()}, temperature, vocab, rule};
  if (!at::GradMode::is_enabled()) {
    const Rows scored = score_rows(rows, packed->get({&weight, 1}), plan);
    return {scored.logprob, scored.entropy};
  }
  const variable_list scored = ScoreFunction::apply(rows, weight, std::move(plan));
  return {scored[0], scored[1]};
}

}  // namespace troupe::tensor
