// Mixtures of experts. Source: research/models.md 4, 5.4, 6.4, 7.5, 8, 9.
#include "model/blocks.h"
#include "tensor/autograd.h"
#include "tensor/parts.h"

namespace troupe::model {

namespace {

kernels::Router rule_of(const ExpertsSpec& spec) {
  kernels::Router rule;
  rule.chosen = spec.chosen;
  rule.score = spec.score;
  rule.groups = spec.groups;
  rule.groups_kept = spec.groups_kept;
  rule.normalise = spec.normalise;
  rule.guard = static_cast<float>(spec.guard);
  rule.scale = static_cast<float>(spec.scale);
  return rule;
}

/// The experts that the tokens' ids name. Shapes: table [V, chosen].
std::vector<std::int32_t> table_choices(const Context& context, const ExpertsSpec& spec) {
  std::vector<std::int32_t> choices;
  if (!spec.hash) return choices;
  const at::Tensor table = context.value(Role::kRouterTable);
  for (const std::int32_t id : context.sight.ids)
    for (std::int64_t j = 0; j < spec.chosen; ++j)
      choices.push_back(static_cast<std::int32_t>(table.data_ptr<float>()[id * spec.chosen + j]));
  return choices;
}

tensor::GatedUnit unit_of(const UnitSpec& unit) { return {unit.limit, unit.alpha, unit.up_offset}; }

at::Tensor shared_expert(const Context& context, const ExpertsSpec& spec, const at::Tensor& x) {
  const at::Tensor inner =
      tensor::gated_unit(context.project(x, {Role::kSharedGate, Role::kSharedUp}), unit_of(spec.shared_unit),
                         tensor::where_of(context.backends.activation));
  const at::Tensor y = context.project(inner, {Role::kSharedDown});
  return spec.shared_gate ? y * tensor::sigmoid(context.project(x, {Role::kSharedSwitch})) : y;
}

}  // namespace

at::Tensor expert_ffn(const Context& context, const ExpertsSpec& spec, const at::Tensor& x) {
  const tensor::Where where = tensor::where_of(context.backends.experts);
  at::Tensor logits = context.project(x, {Role::kRouter});
  if (spec.router_bias) logits = logits + context.value(Role::kRouterBias);
  if (spec.logit_multiplier != 1) logits = logits * spec.logit_multiplier;
  const tensor::Routing routing =
      tensor::route(logits, context.value(Role::kRouterCorrection), table_choices(context, spec), rule_of(spec), where);
  if (context.trace != nullptr) context.trace->routed.push_back({context.place, logits, routing.weights, *routing.choices});

  tensor::ExpertWeights weights;
  weights.gate_up = context.value(Role::kExpertsGateUp);
  weights.down = context.value(Role::kExpertsDown);
  weights.gate_up_bias = context.value(Role::kExpertsGateUpBias);
  weights.down_bias = context.value(Role::kExpertsDownBias);
  weights.norm = context.value(Role::kExpertsOutNorm);
  weights.norm_eps = spec.out_norm_eps;
  weights.layout = spec.columns ? tensor::ExpertLayout::kColumns : tensor::ExpertLayout::kRows;
  weights.unit = unit_of(spec.unit);
  const bool narrowed = spec.latent_width > 0;
  const at::Tensor inner =
      narrowed ? context.norm(context.project(x, {Role::kExpertsIn}), Role::kExpertsInNorm, spec.latent_norm) : x;
  at::Tensor y = tensor::experts(inner, routing, weights, context.slots.group(Role::kExpertsGateUp),
                                 context.slots.group(Role::kExpertsDown), where);
  if (narrowed) y = context.project(y, {Role::kExpertsOut});
  return spec.shared_width > 0 ? y + shared_expert(context, spec, x) : y;
}

}  // namespace troupe::model
