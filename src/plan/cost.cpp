#include "plan/cost.h"

#include <algorithm>


namespace troupe::plan {

namespace {

using model::AttentionKind;
using model::AttentionSpec;
using model::Role;

const model::LayerSpec* layer_at(const model::ModelSpec& spec, int place) {
  if (place < 0) return nullptr;
  const auto at = static_cast<std::size_t>(place);
  return at < spec.layers.size() ? &spec.layers[at] : &spec.mtp[at - spec.layers.size()];
}

/// Whether the parameter has a part for each expert.
bool by_expert(Role role) {
  return role == Role::kExpertsGateUp || role == Role::kExpertsGateUpBias || role == Role::kExpertsDown ||
         role == Role::kExpertsDownBias;
}

Component component_of(Role role) {
  switch (role) {
    case Role::kEmbedding:
      return Component::kEmbedding;
    case Role::kHead:
      return Component::kHead;
    case Role::kFinalNorm:
    case Role::kAttentionNorm:
    case Role::kFfnNorm:
    case Role::kFfnPostNorm:
      return Component::kNorms;
    case Role::kHyperHeadFn:
    case Role::kHyperHeadBase:
    case Role::kHyperHeadScale:
    case Role::kAttentionResidual:
    case Role::kFfnResidual:
    case Role::kHyperAttentionFn:
    case Role::kHyperAttentionBase:
    case Role::kHyperAttentionScale:
    case Role::kHyperFfnFn:
    case Role::kHyperFfnBase:
    case Role::kHyperFfnScale:
      return Component::kResidual;
    case Role::kRouter:
    case Role::kRouterBias:
      return Component::kRouter;
    case Role::kRouterCorrection:
    case Role::kRouterTable:
      return Component::kRules;
    case Role::kExpertsGateUp:
    case Role::kExpertsGateUpBias:
    case Role::kExpertsDown:
    case Role::kExpertsDownBias:
    case Role::kExpertsIn:
    case Role::kExpertsInNorm:
    case Role::kExpertsOutNorm:
    case Role::kExpertsOut:
      return Component::kExperts;
    case Role::kSharedGate:
    case Role::kSharedUp:
    case Role::kSharedDown:
    case Role::kSharedSwitch:
      return Component::kSharedExperts;
    case Role::kFfnGate:
    case Role::kFfnUp:
    case Role::kFfnDown:
      return Component::kFeedForward;
    default:
      return Component::kAttention;
  }
}

/// The mean over positions t = 1..tokens of min(t / every, most); most 0: no limit.
double mean_keys(std::int64_t tokens, std::int64_t every, std::int64_t most) {
  double sum = 0;
  for (std::int64_t t = 1; t <= tokens; ++t) {
    const std::int64_t keys = t / every;
    sum += static_cast<double>(most > 0 ? std::min(keys, most) : keys);
  }
  return sum / static_cast<double>(tokens);
}

struct AttentionOperations {
  double attention = 0, windowed = 0, extra = 0;
};

AttentionOperations of_compressed(const AttentionSpec& a, std::int64_t tokens) {
  const model::CompressSpec& c = a.compress;
  double keys = mean_keys(tokens, 1, a.window);
  if (c.ratio > 0) keys += mean_keys(tokens, c.ratio, c.index_top);
  AttentionOperations out;
  out.attention = out.windowed = 12.0 * static_cast<double>(a.heads * a.head_dim) * keys;
  if (c.index_top > 0)
    out.extra = 6.0 * static_cast<double>(c.index_heads * c.index_dim) * mean_keys(tokens, c.ratio, 0);
  return out;
}

AttentionOperations of_attention(const AttentionSpec& a, std::int64_t tokens) {
  const auto all = static_cast<double>(tokens);
  AttentionOperations out;
  switch (a.kind) {
    case AttentionKind::kGroupedQuery: {
      const double per_key = 12.0 * static_cast<double>(a.heads * a.head_dim);
      out.attention = per_key * all;
      out.windowed = per_key * (a.window > 0 ? mean_keys(tokens, 1, a.window) : all);
      return out;
    }
    case AttentionKind::kLatent:
      out.attention = out.windowed =
          6.0 * static_cast<double>(a.heads * (a.latent.nope_dim + a.latent.rope_dim + a.latent.value_dim)) * all;
      return out;
    case AttentionKind::kDeltaNet:
      out.extra = 18.0 * static_cast<double>(a.delta.value_heads * a.delta.key_dim * a.delta.value_dim);
      return out;
    case AttentionKind::kCompressed:
      return of_compressed(a, tokens);
  }
  return out;
}

}  // namespace

std::string_view to_string(Component component) {
  constexpr std::array<std::string_view, static_cast<std::size_t>(Component::kCount)> kNames = {
      "embedding", "head",  "attention", "router",         "experts", "shared_experts", "feed_forward",
      "norms",     "residual", "further_tokens", "rules"};
  return kNames[static_cast<std::size_t>(component)];
}

Component component_of(const model::ParameterSpec& row, const model::ModelSpec& spec) {
  const Component component = component_of(row.role);
  const bool further = row.place >= static_cast<int>(spec.layers.size());
  return further && component != Component::kRules ? Component::kFurtherTokens : component;
}

ParameterCounts count_parameters(const model::ModelSpec& spec) {
  ParameterCounts counts;
  for (const model::ParameterSpec& row : model::parameter_table(spec)) {
    const Component component = component_of(row, spec);
    const std::int64_t elements = row.elements();
    counts.of[static_cast<std::size_t>(component)] += elements;
    counts.stored += elements;
    if (row.trains) counts.trained += elements;
    if (component == Component::kFurtherTokens || component == Component::kRules) continue;
    counts.total += elements;
    const model::LayerSpec* layer = layer_at(spec, row.place);
    counts.active += layer != nullptr && by_expert(row.role)
                         ? elements / layer->ffn.experts.count * layer->ffn.experts.chosen
                         : elements;
  }
  return counts;
}

TokenOperations count_operations(const model::ModelSpec& spec, std::int64_t sequence_tokens) {
  const ParameterCounts counts = count_parameters(spec);
  const std::int64_t looked_up = spec.tied ? 0 : counts[Component::kEmbedding];
  TokenOperations out;
  out.projections = 6.0 * static_cast<double>(counts.active - looked_up);
  for (const model::LayerSpec& layer : spec.layers) {
    const AttentionOperations one = of_attention(layer.attention, sequence_tokens);
    out.attention += one.attention;
    out.attention_windowed += one.windowed;
    out.extra += one.extra;
  }
  return out;
}

CacheCost count_cache(const model::ModelSpec& spec, kernels::Precision precision) {
  CacheCost cost;
  for (const model::LayerSpec& layer : spec.layers)
    cost.bytes_per_token += model::bytes_per_token(model::cache_of(layer.attention), precision);
  cost.bytes_per_sequence = model::KvCache::bytes_per_state(spec);
  cost.bytes_at_context = static_cast<std::int64_t>(cost.bytes_per_token * static_cast<double>(spec.context)) + cost.bytes_per_sequence;
  return cost;
}

}  // namespace troupe::plan
