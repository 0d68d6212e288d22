// From config.json to the parts of each family that grouped-query attention and one feed-forward layer do not cover.
// Facts: research/models.md 4 to 9.
#include <algorithm>
#include <cmath>

#include "model/config_rope.h"
#include "model/registry.h"

namespace troupe::model {

namespace {

Status check_range(const ConfigReader& config, const char* key, std::int64_t value, std::int64_t least,
                   std::int64_t most) {
  if (value >= least && value <= most) return {};
  return config.refuse(std::string(key) + " is " + std::to_string(value) + ", allowed are " + std::to_string(least) +
                       " to " + std::to_string(most));
}

constexpr std::int64_t kMany = 1 << 20;

/// A whole number in a range.
Result<std::int64_t> count(const ConfigReader& config, const char* key, std::optional<std::int64_t> otherwise = {},
                           std::int64_t least = 1, std::int64_t most = kMany) {
  TROUPE_TRY(const std::int64_t value, config.integer(key, otherwise));
  TROUPE_TRY_STATUS(check_range(config, key, value, least, most));
  return value;
}

double inverse_root(std::int64_t n) { return 1 / std::sqrt(static_cast<double>(n)); }

/// num_experts, num_local_experts or n_routed_experts; num_experts_per_tok or experts_per_token.
Status read_expert_counts(const ConfigReader& config, ExpertsSpec& experts) {
  const char* key = "num_experts";
  for (const char* other : {"num_local_experts", "n_routed_experts"})
    if (config.get(other) != nullptr) key = other;
  TROUPE_TRY(experts.count, count(config, key));
  const char* chosen = config.get("experts_per_token") != nullptr && config.get("num_experts_per_tok") == nullptr
                           ? "experts_per_token"
                           : "num_experts_per_tok";
  TROUPE_TRY(experts.chosen, count(config, chosen, {}, 1, experts.count));
  (void)config.get("experts_per_token");
  TROUPE_TRY(experts.aux_coefficient, config.number("router_aux_loss_coef", 0));
  return {};
}

Status read_groups(const ConfigReader& config, ExpertsSpec& experts) {
  TROUPE_TRY(experts.groups, count(config, "n_group", 1, 1, experts.count));
  TROUPE_TRY(experts.groups_kept, count(config, "topk_group", experts.groups, 1, experts.groups));
  if (experts.count % experts.groups != 0)
    return config.refuse("the number of experts (" + std::to_string(experts.count) + ") must be a multiple of n_group (" +
                         std::to_string(experts.groups) + ")");
  if (experts.chosen > experts.count / experts.groups * experts.groups_kept)
    return config.refuse("num_experts_per_tok is " + std::to_string(experts.chosen) +
                         ", more than the experts of topk_group (" + std::to_string(experts.groups_kept) + ") groups");
  return {};
}

/// What all layers have in common is in the first one.
LayerSpec& base(ModelSpec& spec) { return spec.layers.front(); }


/// Grouped-query attention goes to the kernel that has no limits where the other one has them.
Status check_heads(const ConfigReader& config, const AttentionSpec& attention) {
  return check_range(config, "head_dim", attention.head_dim, 2, 4096);
}

Result<std::vector<std::string>> layer_kinds(const ConfigReader& config, const char* key, const ModelSpec& spec,
                                             std::initializer_list<std::string_view> known) {
  TROUPE_TRY(auto kinds, config.strings(key));
  if (kinds.empty()) return kinds;
  if (kinds.size() != spec.layers.size())
    return config.refuse("'" + std::string(key) + "' has " + std::to_string(kinds.size()) + " entries for " +
                         std::to_string(spec.layers.size()) + " layers");
  for (const std::string& kind : kinds)
    if (std::find(known.begin(), known.end(), kind) == known.end()) {
      std::string list;
      for (const std::string_view one : known) list += (list.empty() ? "\"" : ", \"") + std::string(one) + "\"";
      return config.refuse("'" + std::string(key) + "' holds \"" + kind + "\"; supported are " + list);
    }
  return kinds;
}

}  // namespace

Status read_qwen3_moe(const ConfigReader& config, ModelSpec& spec) {
  for (const char* key : {"attention_bias", "mlp_bias", "use_sliding_window"})
    TROUPE_TRY_STATUS(config.must_be_off(key));
  LayerSpec layer = base(spec);
  TROUPE_TRY_STATUS(check_heads(config, layer.attention));
  TROUPE_TRY(const RopeSpec rope, read_rope(config, layer.attention.head_dim, spec.context, 10000));
  spec.ropes = {rope};
  const LayerSpec dense = layer;
  layer.ffn.kind = FfnKind::kExperts;
  ExpertsSpec& experts = layer.ffn.experts;
  TROUPE_TRY_STATUS(read_expert_counts(config, experts));
  TROUPE_TRY(experts.width, count(config, "moe_intermediate_size"));
  TROUPE_TRY(experts.normalise, config.boolean("norm_topk_prob", false));
  TROUPE_TRY(const std::int64_t step, count(config, "decoder_sparse_step", 1));
  TROUPE_TRY(const auto dense_layers, config.integers("mlp_only_layers"));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i);
    const bool named = std::find(dense_layers.begin(), dense_layers.end(), number) != dense_layers.end();
    spec.layers[i] = named || (number + 1) % step != 0 ? dense : layer;
  }
  return {};
}

Status read_gpt_oss(const ConfigReader& config, ModelSpec& spec) {
  LayerSpec layer = base(spec);
  AttentionSpec& attention = layer.attention;
  TROUPE_TRY_STATUS(check_heads(config, attention));
  TROUPE_TRY(attention.biases, config.boolean("attention_bias", true));
  TROUPE_TRY(const RopeSpec rope, read_rope(config, attention.head_dim, spec.context, 150000));
  spec.ropes = {rope};
  attention.sinks = true;
  layer.ffn.kind = FfnKind::kExperts;
  ExpertsSpec& experts = layer.ffn.experts;
  TROUPE_TRY_STATUS(read_expert_counts(config, experts));
  experts.width = layer.ffn.width;
  experts.score = kernels::RouterScore::kSoftmaxOfChosen;
  experts.router_bias = experts.columns = experts.biases = true;
  experts.unit.up_offset = 1;
  TROUPE_TRY(experts.unit.limit, config.number("swiglu_limit", 7));
  TROUPE_TRY(experts.unit.alpha, config.number("swiglu_alpha", 1.702));
  TROUPE_TRY(const std::int64_t window, count(config, "sliding_window", 128));
  TROUPE_TRY(const auto kinds, layer_kinds(config, "layer_types", spec, {"sliding_attention", "full_attention"}));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const bool slides = kinds.empty() ? i % 2 == 0 : kinds[i] == "sliding_attention";
    spec.layers[i] = layer;
    spec.layers[i].attention.window = slides ? window : 0;
  }
  return {};
}

Status read_deepseek_v3(const ConfigReader& config, ModelSpec& spec) {
  TROUPE_TRY_STATUS(config.must_be_off("attention_bias"));
  TROUPE_TRY_STATUS(config.must_be("scoring_func", "sigmoid"));
  TROUPE_TRY_STATUS(config.must_be("topk_method", "noaux_tc"));
  TROUPE_TRY(const bool interleave, config.boolean("rope_interleave", true));
  if (!interleave) return config.refuse("'rope_interleave' is false; supported is true");
  TROUPE_TRY(const std::int64_t every, count(config, "moe_layer_freq", 1));
  TROUPE_TRY(const std::int64_t first, count(config, "first_k_dense_replace", 0, 0));
  LayerSpec layer = base(spec);
  AttentionSpec& attention = layer.attention;
  LatentSpec& latent = attention.latent;
  attention.kind = AttentionKind::kLatent;
  attention.q_norm.eps = attention.k_norm.eps = 1e-6;
  TROUPE_TRY(latent.q_rank, count(config, "q_lora_rank", 0, 0));
  TROUPE_TRY(latent.kv_rank, count(config, "kv_lora_rank"));
  TROUPE_TRY(latent.nope_dim, count(config, "qk_nope_head_dim"));
  TROUPE_TRY(latent.rope_dim, count(config, "qk_rope_head_dim"));
  TROUPE_TRY(latent.value_dim, count(config, "v_head_dim"));
  TROUPE_TRY(const RopeSpec rope, read_rope(config, latent.rope_dim, spec.context, 10000));
  spec.ropes = {rope};
  attention.scale = inverse_root(latent.nope_dim + latent.rope_dim);
  for (const char* spelling : {"rope_parameters", "rope_scaling"}) {
    const nlohmann::json* scaling = config.get(spelling);
    if (scaling == nullptr || rope.kind == RopeKind::kDefault) continue;
    TROUPE_TRY(const double all, ConfigReader(*scaling, config.where()).number("mscale_all_dim", 0));
    if (all != 0) attention.scale *= std::pow(yarn_magnitude(rope.factor, all), 2);
    break;
  }
  const LayerSpec dense = layer;
  layer.ffn.kind = FfnKind::kExperts;
  ExpertsSpec& experts = layer.ffn.experts;
  TROUPE_TRY_STATUS(read_expert_counts(config, experts));
  TROUPE_TRY_STATUS(read_groups(config, experts));
  TROUPE_TRY(experts.width, count(config, "moe_intermediate_size"));
  TROUPE_TRY(const std::int64_t shared, count(config, "n_shared_experts", 0, 0));
  TROUPE_TRY(experts.normalise, config.boolean("norm_topk_prob", true));
  TROUPE_TRY(experts.scale, config.number("routed_scaling_factor", 1));
  experts.shared_width = experts.width * shared;
  experts.score = kernels::RouterScore::kSigmoid;
  experts.guard = 1e-20;
  experts.correction = true;
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i);
    spec.layers[i] = number < first || number % every != 0 ? dense : layer;
  }
  TROUPE_TRY(const std::int64_t blocks, count(config, "num_nextn_predict_layers", 0, 0, 8));
  spec.mtp.assign(static_cast<std::size_t>(blocks), layer);
  spec.mtp_norm.eps = 1e-6;
  return {};
}

namespace {

Status read_compressed_attention(const ConfigReader& config, ModelSpec& spec, AttentionSpec& attention) {
  CompressSpec& c = attention.compress;
  attention.kind = AttentionKind::kCompressed;
  attention.sinks = true;
  attention.scale = inverse_root(attention.head_dim);
  if (attention.kv_heads != 1) return config.refuse("num_key_value_heads must be 1");
  TROUPE_TRY(attention.window, count(config, "sliding_window"));
  TROUPE_TRY(c.q_rank, count(config, "q_lora_rank"));
  TROUPE_TRY(c.rope_dim, count(config, "qk_rope_head_dim", {}, 2, attention.head_dim));
  TROUPE_TRY(c.out_groups, count(config, "o_groups", {}, 1, attention.heads));
  TROUPE_TRY(c.out_rank, count(config, "o_lora_rank"));
  if (attention.heads * attention.head_dim % c.out_groups != 0)
    return config.refuse("o_groups must divide num_attention_heads * head_dim");
  TROUPE_TRY(c.index_heads, count(config, "index_n_heads"));
  TROUPE_TRY(c.index_dim, count(config, "index_head_dim", {}, c.rope_dim));
  TROUPE_TRY(c.index_top, count(config, "index_topk"));
  TROUPE_TRY(RopeSpec squeezed, read_rope(config, c.rope_dim, spec.context, 10000));
  RopeSpec plain;
  plain.theta = squeezed.theta;
  plain.width = c.rope_dim;
  TROUPE_TRY(squeezed.theta, config.number("compress_rope_theta", squeezed.theta));
  if (!(squeezed.theta > 1)) return config.refuse("compress_rope_theta must be a number above 1");
  squeezed.attention_factor = 1;
  spec.ropes = {plain, squeezed};
  return {};
}

Status read_hyper(const ConfigReader& config, ModelSpec& spec) {
  TROUPE_TRY(spec.hyper.streams, count(config, "hc_mult", {}, 2, 64));
  TROUPE_TRY(spec.hyper.iterations, count(config, "hc_sinkhorn_iters", {}, 1, 1000));
  TROUPE_TRY(spec.hyper.eps, config.number("hc_eps"));
  return {};
}

/// The layer of a compression ratio; `layer` has everything else.
LayerSpec with_ratio(LayerSpec layer, std::int64_t ratio) {
  CompressSpec& c = layer.attention.compress;
  c.ratio = ratio;
  c.overlap = ratio == 4;
  if (!c.overlap) c.index_heads = c.index_dim = c.index_top = 0;
  layer.attention.rope = ratio == 0 ? 0 : 1;
  return layer;
}

}  // namespace

Status read_deepseek_v4(const ConfigReader& config, ModelSpec& spec) {
  TROUPE_TRY_STATUS(config.must_be_off("attention_bias"));
  TROUPE_TRY_STATUS(config.must_be("scoring_func", "sqrtsoftplus"));
  TROUPE_TRY_STATUS(config.must_be("topk_method", "noaux_tc"));
  LayerSpec layer = base(spec);
  TROUPE_TRY_STATUS(read_compressed_attention(config, spec, layer.attention));
  TROUPE_TRY_STATUS(read_hyper(config, spec));
  layer.residual = ResidualKind::kHyper;
  layer.ffn.kind = FfnKind::kExperts;
  ExpertsSpec& experts = layer.ffn.experts;
  TROUPE_TRY_STATUS(read_expert_counts(config, experts));
  TROUPE_TRY(experts.width, count(config, "moe_intermediate_size"));
  TROUPE_TRY(const std::int64_t shared, count(config, "n_shared_experts", 0, 0));
  TROUPE_TRY(experts.normalise, config.boolean("norm_topk_prob", true));
  TROUPE_TRY(experts.scale, config.number("routed_scaling_factor", 1));
  TROUPE_TRY(experts.unit.limit, config.number("swiglu_limit", 0));
  experts.shared_width = experts.width * shared;
  experts.shared_unit = experts.unit;
  experts.score = kernels::RouterScore::kSqrtSoftplus;
  experts.guard = 1e-20;
  experts.correction = true;
  TROUPE_TRY(const std::int64_t hashed, count(config, "num_hash_layers", 0, 0));
  TROUPE_TRY(const std::int64_t blocks, count(config, "num_nextn_predict_layers", 0, 0, 8));
  TROUPE_TRY(const auto ratios, config.integers("compress_ratios"));
  if (ratios.size() < spec.layers.size())
    return config.refuse("'compress_ratios' has " + std::to_string(ratios.size()) + " entries for " +
                         std::to_string(spec.layers.size()) + " layers");
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    TROUPE_TRY_STATUS(check_range(config, "an entry of compress_ratios", ratios[i], 0, 1 << 16));
    spec.layers[i] = with_ratio(layer, ratios[i]);
    ExpertsSpec& own = spec.layers[i].ffn.experts;
    own.hash = static_cast<std::int64_t>(i) < hashed;
    own.correction = !own.hash;
  }
  spec.mtp.assign(static_cast<std::size_t>(blocks), with_ratio(layer, 0));
  spec.mtp_join = MtpJoin::kPerStream;
  spec.mtp_norm = spec.final_norm;
  return {};
}

namespace {

Status read_delta_layer(const ConfigReader& config, LayerSpec& layer) {
  layer.attention.kind = AttentionKind::kDeltaNet;
  DeltaSpec& delta = layer.attention.delta;
  TROUPE_TRY(delta.key_heads, count(config, "linear_num_key_heads"));
  TROUPE_TRY(delta.value_heads, count(config, "linear_num_value_heads"));
  TROUPE_TRY(delta.key_dim, count(config, "linear_key_head_dim"));
  TROUPE_TRY(delta.value_dim, count(config, "linear_value_head_dim"));
  TROUPE_TRY(delta.taps, count(config, "linear_conv_kernel_dim", {}, 1, 64));
  if (delta.value_heads % delta.key_heads != 0)
    return config.refuse("linear_num_value_heads must be a multiple of linear_num_key_heads");
  return {};
}

Status read_qwen35_experts(const ConfigReader& config, FfnSpec& ffn) {
  ffn.kind = FfnKind::kExperts;
  TROUPE_TRY_STATUS(read_expert_counts(config, ffn.experts));
  TROUPE_TRY(ffn.experts.width, count(config, "moe_intermediate_size"));
  TROUPE_TRY(ffn.experts.shared_width, count(config, "shared_expert_intermediate_size", 0, 0));
  TROUPE_TRY(const bool normalise, config.boolean("norm_topk_prob", true));
  if (!normalise) return config.refuse("'norm_topk_prob' is false; supported is true");
  ffn.experts.shared_gate = true;
  return {};
}

}  // namespace

Status read_qwen3_5(const ConfigReader& config, ModelSpec& spec) {
  TROUPE_TRY_STATUS(config.must_be_off("attention_bias"));
  TROUPE_TRY_STATUS(config.must_be_off("mtp_use_dedicated_embeddings"));
  TROUPE_TRY(const bool gated, config.boolean("attn_output_gate", true));
  if (!gated) return config.refuse("'attn_output_gate' is false; supported is true");
  TROUPE_TRY_STATUS(config.must_be("output_gate_type", "swish"));
  LayerSpec full = base(spec);
  TROUPE_TRY_STATUS(check_heads(config, full.attention));
  const NormSpec zero_centred{full.attention_norm.eps, 1};
  full.attention_norm = full.ffn_norm = full.attention.q_norm = full.attention.k_norm = zero_centred;
  spec.final_norm = spec.mtp_norm = zero_centred;
  full.attention.gate = AttentionGate::kInQuery;
  TROUPE_TRY(const RopeSpec rope, read_rope(config, full.attention.head_dim, spec.context, 1e7));
  spec.ropes = {rope};
  if (spec.family == "qwen3_5_moe") {
    TROUPE_TRY_STATUS(read_qwen35_experts(config, full.ffn));
  } else if (config.get("intermediate_size") == nullptr) {
    return config.refuse("the key 'intermediate_size' is missing; it must be a whole number");
  }
  LayerSpec linear = full;
  TROUPE_TRY_STATUS(read_delta_layer(config, linear));
  TROUPE_TRY(const std::int64_t interval, count(config, "full_attention_interval", 4));
  TROUPE_TRY(const auto kinds, layer_kinds(config, "layer_types", spec, {"linear_attention", "full_attention"}));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const bool is_full = kinds.empty() ? (static_cast<std::int64_t>(i) + 1) % interval == 0 : kinds[i] == "full_attention";
    spec.layers[i] = is_full ? full : linear;
  }
  TROUPE_TRY(const std::int64_t blocks, count(config, "mtp_num_hidden_layers", 0, 0, 1));
  spec.mtp.assign(static_cast<std::size_t>(blocks), full);
  return {};
}

namespace {

Status read_muse_experts(const ConfigReader& config, const ModelSpec& spec, double eps, double post_eps, FfnSpec& ffn) {
  ffn.kind = FfnKind::kExperts;
  ExpertsSpec& experts = ffn.experts;
  TROUPE_TRY_STATUS(read_expert_counts(config, experts));
  TROUPE_TRY(experts.width, count(config, "moe_intermediate_size"));
  TROUPE_TRY(experts.latent_width, count(config, "moe_hidden_size"));
  TROUPE_TRY(experts.scale, config.number("routed_scaling_factor", 1));
  experts.score = kernels::RouterScore::kSigmoid;
  experts.guard = 1e-15;
  experts.correction = true;
  experts.logit_multiplier = spec.logit_multiplier;
  experts.latent_norm = {eps, 1};
  experts.out_norm_eps = post_eps;
  return {};
}

}  // namespace

Status read_muse_spark(const ConfigReader& config, ModelSpec& spec) {
  TROUPE_TRY_STATUS(config.must_be_off("attention_bias"));
  LayerSpec layer = base(spec);
  AttentionSpec& attention = layer.attention;
  TROUPE_TRY_STATUS(check_heads(config, attention));
  const double eps = spec.final_norm.eps;
  TROUPE_TRY(layer.post_norm_eps, config.number("post_norm_eps", 1e-8));
  TROUPE_TRY(layer.gate_temperature, config.number("residual_gate_temperature", 0.3));
  TROUPE_TRY(attention.q_multiplier, config.number("qk_scale_factor", 1));
  TROUPE_TRY(spec.logit_multiplier, config.number("output_multiplier", 1));
  TROUPE_TRY(spec.logit_cap, config.number("final_logit_softcapping", 0));
  if (!(layer.gate_temperature > 0) || !(layer.post_norm_eps > 0) || !(spec.logit_cap >= 0))
    return config.refuse("residual_gate_temperature and post_norm_eps must be above 0, final_logit_softcapping from 0 on");
  layer.residual = ResidualKind::kGated;
  layer.attention_norm = layer.ffn_norm = {eps, 1};
  attention.qk_norm_weights = false;
  attention.gate = AttentionGate::kOwn;
  attention.out_norm_eps = eps;
  spec.embedding_norm = true;
  TROUPE_TRY(const RopeSpec rope, read_rope(config, attention.head_dim, spec.context, 5e5));
  spec.ropes = {rope};
  TROUPE_TRY(const std::int64_t window, count(config, "sliding_window"));
  LayerSpec sparse = layer;
  TROUPE_TRY_STATUS(read_muse_experts(config, spec, eps, layer.post_norm_eps, sparse.ffn));
  TROUPE_TRY(const auto kinds, layer_kinds(config, "layer_types", spec, {"sliding_attention", "full_attention"}));
  TROUPE_TRY(const auto ffns, layer_kinds(config, "mlp_layer_types", spec, {"dense", "sparse"}));
  TROUPE_TRY(const auto thetas, config.integers("layer_rope_theta"));
  const std::size_t layers = spec.layers.size();
  if (!thetas.empty() && thetas.size() != layers)
    return config.refuse("'layer_rope_theta' must have an entry for every layer");
  for (std::size_t i = 0; i < layers; ++i) {
    const bool full = kinds.empty() ? (layers - 1 - i) % 4 == 0 : kinds[i] == "full_attention";
    const std::int64_t theta = thetas.empty() ? (full ? 0 : static_cast<std::int64_t>(rope.theta)) : thetas[i];
    if (theta != 0 && static_cast<double>(theta) != rope.theta)
      return config.refuse("'layer_rope_theta' holds " + std::to_string(theta) + "; supported are 0 and rope_theta");
    spec.layers[i] = !ffns.empty() && ffns[i] == "dense" ? layer : sparse;
    spec.layers[i].attention.window = full ? 0 : window;
    spec.layers[i].attention.rope = theta == 0 ? -1 : 0;
  }
  return {};
}

}  // namespace troupe::model
