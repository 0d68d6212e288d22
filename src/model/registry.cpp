#include "model/registry.h"

#include <array>
#include <cmath>
#include <cstdlib>

#include "base/check.h"

namespace troupe::model {

namespace {

constexpr NameMap kPlain = {.root = "model.", .layer = "model.layers.{}."};

constexpr NameMap kQwen3Moe = {.root = "model.",
                               .layer = "model.layers.{}.",
                               .split_experts = "mlp.experts.{}.",
                               .expert_gate = "gate_proj.weight",
                               .expert_up = "up_proj.weight",
                               .expert_down = "down_proj.weight"};

constexpr std::array kGptOssNames = std::to_array<RoleName>({
    {Role::kRouter, "mlp.router.weight"},
    {Role::kRouterBias, "mlp.router.bias"},
});
constexpr NameMap kGptOss = {.root = "model.", .layer = "model.layers.{}.", .names = kGptOssNames};

constexpr std::array kDeepseekV3Names = std::to_array<RoleName>({
    {Role::kMtpEmbeddingNorm, "enorm.weight"},
    {Role::kMtpHiddenNorm, "hnorm.weight"},
    {Role::kMtpProject, "eh_proj.weight"},
    {Role::kMtpNorm, "shared_head.norm.weight"},
});
constexpr NameMap kDeepseekV3 = {.root = "model.",
                                 .layer = "model.layers.{}.",
                                 .mtp = "model.layers.{}.",
                                 .mtp_layer = "model.layers.{}.",
                                 .mtp_counts_on = true,
                                 .names = kDeepseekV3Names,
                                 .split_experts = "mlp.experts.{}.",
                                 .expert_gate = "gate_proj.weight",
                                 .expert_up = "up_proj.weight",
                                 .expert_down = "down_proj.weight",
                                 .mtp_embedding = "embed_tokens.weight",
                                 .mtp_head = "shared_head.head.weight"};

constexpr std::array kDeepseekV4Names = std::to_array<RoleName>({
    {Role::kEmbedding, "embed.weight"},
    {Role::kHead, "head.weight"},
    {Role::kHyperHeadFn, "hc_head_fn"},
    {Role::kHyperHeadBase, "hc_head_base"},
    {Role::kHyperHeadScale, "hc_head_scale"},
    {Role::kMtpEmbeddingNorm, "enorm.weight"},
    {Role::kMtpHiddenNorm, "hnorm.weight"},
    {Role::kMtpEmbeddingProject, "e_proj.weight"},
    {Role::kMtpHiddenProject, "h_proj.weight"},
    {Role::kMtpNorm, "norm.weight"},
    {Role::kAttentionNorm, "attn_norm.weight"},
    {Role::kFfnNorm, "ffn_norm.weight"},
    {Role::kHyperAttentionFn, "hc_attn_fn"},
    {Role::kHyperAttentionBase, "hc_attn_base"},
    {Role::kHyperAttentionScale, "hc_attn_scale"},
    {Role::kHyperFfnFn, "hc_ffn_fn"},
    {Role::kHyperFfnBase, "hc_ffn_base"},
    {Role::kHyperFfnScale, "hc_ffn_scale"},
    {Role::kQDown, "attn.wq_a.weight"},
    {Role::kQDownNorm, "attn.q_norm.weight"},
    {Role::kQUp, "attn.wq_b.weight"},
    {Role::kKvDown, "attn.wkv.weight"},
    {Role::kKvDownNorm, "attn.kv_norm.weight"},
    {Role::kOutDown, "attn.wo_a.weight"},
    {Role::kOut, "attn.wo_b.weight"},
    {Role::kSinks, "attn.attn_sink"},
    {Role::kPoolValues, "attn.compressor.wkv.weight"},
    {Role::kPoolLogits, "attn.compressor.wgate.weight"},
    {Role::kPoolPosition, "attn.compressor.ape"},
    {Role::kPoolNorm, "attn.compressor.norm.weight"},
    {Role::kIndexQ, "attn.indexer.wq_b.weight"},
    {Role::kIndexWeights, "attn.indexer.weights_proj.weight"},
    {Role::kIndexPoolValues, "attn.indexer.compressor.wkv.weight"},
    {Role::kIndexPoolLogits, "attn.indexer.compressor.wgate.weight"},
    {Role::kIndexPoolPosition, "attn.indexer.compressor.ape"},
    {Role::kIndexPoolNorm, "attn.indexer.compressor.norm.weight"},
    {Role::kRouter, "ffn.gate.weight"},
    {Role::kRouterCorrection, "ffn.gate.bias"},
    {Role::kRouterTable, "ffn.gate.tid2eid"},
    {Role::kExpertsGateUp, "ffn.experts.gate_up_proj"},
    {Role::kExpertsDown, "ffn.experts.down_proj"},
    {Role::kSharedGate, "ffn.shared_experts.w1.weight"},
    {Role::kSharedUp, "ffn.shared_experts.w3.weight"},
    {Role::kSharedDown, "ffn.shared_experts.w2.weight"},
});
constexpr NameMap kDeepseekV4 = {.root = "",
                                 .layer = "layers.{}.",
                                 .mtp = "mtp.{}.",
                                 .mtp_layer = "mtp.{}.",
                                 .names = kDeepseekV4Names,
                                 .split_experts = "ffn.experts.{}.",
                                 .expert_gate = "w1.weight",
                                 .expert_up = "w3.weight",
                                 .expert_down = "w2.weight"};

constexpr std::array kQwen35Names = std::to_array<RoleName>({
    {Role::kMtpEmbeddingNorm, "pre_fc_norm_embedding.weight"},
    {Role::kMtpHiddenNorm, "pre_fc_norm_hidden.weight"},
    {Role::kMtpProject, "fc.weight"},
    {Role::kMtpNorm, "norm.weight"},
    {Role::kSharedGate, "mlp.shared_expert.gate_proj.weight"},
    {Role::kSharedUp, "mlp.shared_expert.up_proj.weight"},
    {Role::kSharedDown, "mlp.shared_expert.down_proj.weight"},
    {Role::kSharedSwitch, "mlp.shared_expert_gate.weight"},
});
constexpr NameMap kQwen35 = {.root = "model.language_model.",
                             .layer = "model.language_model.layers.{}.",
                             .mtp = "mtp.",
                             .mtp_layer = "mtp.layers.{}.",
                             .names = kQwen35Names,
                             .skipped = "model.visual."};

constexpr std::array kMuseNames = std::to_array<RoleName>({
    {Role::kFfnNorm, "pre_feedforward_layernorm.weight"},
    {Role::kFfnPostNorm, "post_feedforward_layernorm.weight"},
    {Role::kAttentionResidual, "post_attention_residual_gate.gate"},
    {Role::kFfnResidual, "post_feedforward_residual_gate.gate"},
    {Role::kExpertsIn, "mlp.pre_expert_proj.weight"},
    {Role::kExpertsInNorm, "mlp.pre_expert_norm.weight"},
    {Role::kExpertsOutNorm, "mlp.experts.post_expert_norm.weight"},
    {Role::kExpertsOut, "mlp.post_expert_proj.weight"},
});
constexpr NameMap kMuse = {
    .root = "model.language_model.",
    .layer = "model.language_model.layers.{}.",
    .names = kMuseNames,
    .skipped = "model.vision_tower.,model.vision_adapter.,model.vision_projection.,model.audio_tower.,model.audio_"};

constexpr std::array<Family, 9> kFamilies = {{
    {"llama", "LlamaForCausalLM", false, 1e-6, 10000, nullptr, &kPlain, "", true, true},
    {"qwen3", "Qwen3ForCausalLM", true, 1e-6, 10000, nullptr, &kPlain, "", true, false},
    {"qwen3_moe", "Qwen3MoeForCausalLM", true, 1e-6, 10000, read_qwen3_moe, &kQwen3Moe, "", false, false},
    {"gpt_oss", "GptOssForCausalLM", false, 1e-5, 150000, read_gpt_oss, &kGptOss, "", false, false},
    {"deepseek_v3", "DeepseekV3ForCausalLM", false, 1e-6, 10000, read_deepseek_v3, &kDeepseekV3, "", false, false},
    {"deepseek_v4", "DeepseekV4ForCausalLM", false, 1e-6, 10000, read_deepseek_v4, &kDeepseekV4, "", false, false},
    {"qwen3_5", "Qwen3_5ForConditionalGeneration", true, 1e-6, 1e7, read_qwen3_5, &kQwen35, "text_config", false, false},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", true, 1e-6, 1e7, read_qwen3_5, &kQwen35, "text_config", false,
     false},
    {"muse_spark", "MuseSparkForConditionalGeneration", true, 1e-5, 5e5, read_muse_spark, &kMuse, "text_config", false,
     false},
}};

constexpr std::int64_t kHeadDimMax = 256;      // of the attention kernel
constexpr std::int64_t kHeadDimStep = 16;      // of the attention kernel
constexpr std::int64_t kNormWidthMax = 65536;  // of the norm kernel

struct Bound {
  std::string_view name;
  std::int64_t value, max;
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) names.push_back(family.name);
  return names;
}

Result<const Family*> find_family(std::string_view name, std::string_view where) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.name == name) return &family;
    known += (known.empty() ? "" : ", ") + std::string(family.name);
  }
  return fail(ErrorCode::kInvalidArgument,
              "the model family '" + std::string(name) + "' is not known; known are: " + known, std::string(where));
}

const NameMap& names_of(const ModelSpec& spec) {
  for (const Family& family : kFamilies)
    if (family.name == spec.family) return *family.names;
  TROUPE_CHECK(false, "the spec's family is a row of the registry");
  std::abort();
}

Status check_counts(const DecoderSizes& sizes, std::string_view where) {
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument, why, std::string(where));
  };
  const std::array<Bound, 8> bounds = {{{"vocab_size", sizes.vocab_size, 1 << 24},
                                        {"hidden_size", sizes.width, kNormWidthMax},
                                        {"num_hidden_layers", sizes.layers, 4096},
                                        {"num_attention_heads", sizes.heads, 4096},
                                        {"num_key_value_heads", sizes.kv_heads, 4096},
                                        {"head_dim", sizes.head_dim, kNormWidthMax},
                                        {"intermediate_size", sizes.ffn_width, 1 << 20},
                                        {"max_position_embeddings", sizes.context, 1 << 28}}};
  for (const Bound& bound : bounds)
    if (bound.value < 1 || bound.value > bound.max)
      return refuse(std::string(bound.name) + " is " + std::to_string(bound.value) + ", allowed are 1 to " +
                    std::to_string(bound.max));
  if (sizes.heads % sizes.kv_heads != 0)
    return refuse("num_attention_heads (" + std::to_string(sizes.heads) +
                  ") must be a multiple of num_key_value_heads (" + std::to_string(sizes.kv_heads) + ")");
  if (!(sizes.norm_eps > 0) || !std::isfinite(sizes.norm_eps)) return refuse("rms_norm_eps must be a positive number");
  if (!(sizes.rope_theta > 1) || !std::isfinite(sizes.rope_theta)) return refuse("rope_theta must be a number above 1");
  if (!(sizes.init_std >= 0) || !std::isfinite(sizes.init_std))
    return refuse("initializer_range must be a number from 0 on");
  return {};
}

Status check_sizes(const DecoderSizes& sizes, std::string_view where) {
  TROUPE_TRY_STATUS(check_counts(sizes, where));
  const std::string found = "head_dim is " + std::to_string(sizes.head_dim);
  if (sizes.head_dim > kHeadDimMax)
    return fail(ErrorCode::kInvalidArgument, found + ", allowed are 1 to " + std::to_string(kHeadDimMax),
                std::string(where));
  if (sizes.head_dim % kHeadDimStep != 0)
    return fail(ErrorCode::kInvalidArgument, found + ", it must be a multiple of 16", std::string(where));
  return {};
}

void fill_layers(ModelSpec& spec, const Family& family, const DecoderSizes& sizes, const RopeSpec& rope) {
  const NormSpec norm{sizes.norm_eps, 0};
  LayerSpec layer;
  layer.attention_norm = norm;
  layer.attention.heads = sizes.heads;
  layer.attention.kv_heads = sizes.kv_heads;
  layer.attention.head_dim = sizes.head_dim;
  layer.attention.scale = 1 / std::sqrt(static_cast<double>(sizes.head_dim));
  layer.attention.qk_norm = family.qk_norm;
  layer.attention.q_norm = norm;
  layer.attention.k_norm = norm;
  layer.attention.rope = 0;
  layer.ffn_norm = norm;
  layer.ffn.width = sizes.ffn_width;
  spec.family = family.name;
  spec.vocab_size = sizes.vocab_size;
  spec.width = sizes.width;
  spec.layers.assign(static_cast<std::size_t>(sizes.layers), layer);
  spec.ropes = {rope};
  spec.final_norm = norm;
  spec.tied = sizes.tied;
  spec.init_std = sizes.init_std;
  spec.context = sizes.context;
}

Result<ModelSpec> spec_from_sizes(std::string_view family_name, const DecoderSizes& asked) {
  TROUPE_TRY(const Family* family, find_family(family_name, ""));
  if (!family->sized)
    return fail(ErrorCode::kInvalidArgument, "a model of the family '" + std::string(family_name) +
                                                 "' has more parts than sizes say: give the folder of its config.json");
  DecoderSizes sizes = asked;
  if (sizes.head_dim == 0 && sizes.heads > 0) sizes.head_dim = sizes.width / sizes.heads;
  TROUPE_TRY_STATUS(check_sizes(sizes, ""));
  RopeSpec rope;
  rope.theta = sizes.rope_theta;
  rope.width = sizes.head_dim;
  ModelSpec spec;
  fill_layers(spec, *family, sizes, rope);
  return spec;
}

}  // namespace troupe::model
