#include "model/names.h"

#include <algorithm>
#include <array>

namespace troupe::model {

namespace {

constexpr std::array kUsual = std::to_array<RoleName>({
    {Role::kEmbedding, "embed_tokens.weight"},
    {Role::kFinalNorm, "norm.weight"},
    {Role::kHead, "lm_head.weight"},
    {Role::kAttentionNorm, "input_layernorm.weight"},
    {Role::kFfnNorm, "post_attention_layernorm.weight"},
    {Role::kQ, "self_attn.q_proj.weight"},
    {Role::kK, "self_attn.k_proj.weight"},
    {Role::kV, "self_attn.v_proj.weight"},
    {Role::kOut, "self_attn.o_proj.weight"},
    {Role::kQBias, "self_attn.q_proj.bias"},
    {Role::kKBias, "self_attn.k_proj.bias"},
    {Role::kVBias, "self_attn.v_proj.bias"},
    {Role::kOutBias, "self_attn.o_proj.bias"},
    {Role::kQNorm, "self_attn.q_norm.weight"},
    {Role::kKNorm, "self_attn.k_norm.weight"},
    {Role::kSinks, "self_attn.sinks"},
    {Role::kOutGate, "self_attn.gate_proj.weight"},
    {Role::kQDown, "self_attn.q_a_proj.weight"},
    {Role::kQDownNorm, "self_attn.q_a_layernorm.weight"},
    {Role::kQUp, "self_attn.q_b_proj.weight"},
    {Role::kKvDown, "self_attn.kv_a_proj_with_mqa.weight"},
    {Role::kKvDownNorm, "self_attn.kv_a_layernorm.weight"},
    {Role::kKvUp, "self_attn.kv_b_proj.weight"},
    {Role::kDeltaQkv, "linear_attn.in_proj_qkv.weight"},
    {Role::kDeltaZ, "linear_attn.in_proj_z.weight"},
    {Role::kDeltaBeta, "linear_attn.in_proj_b.weight"},
    {Role::kDeltaDecay, "linear_attn.in_proj_a.weight"},
    {Role::kDeltaConv, "linear_attn.conv1d.weight"},
    {Role::kDeltaDecayLog, "linear_attn.A_log"},
    {Role::kDeltaTimeBias, "linear_attn.dt_bias"},
    {Role::kDeltaNorm, "linear_attn.norm.weight"},
    {Role::kDeltaOut, "linear_attn.out_proj.weight"},
    {Role::kFfnGate, "mlp.gate_proj.weight"},
    {Role::kFfnUp, "mlp.up_proj.weight"},
    {Role::kFfnDown, "mlp.down_proj.weight"},
    {Role::kRouter, "mlp.gate.weight"},
    {Role::kRouterCorrection, "mlp.gate.e_score_correction_bias"},
    {Role::kExpertsGateUp, "mlp.experts.gate_up_proj"},
    {Role::kExpertsDown, "mlp.experts.down_proj"},
    {Role::kExpertsGateUpBias, "mlp.experts.gate_up_proj_bias"},
    {Role::kExpertsDownBias, "mlp.experts.down_proj_bias"},
    {Role::kSharedGate, "mlp.shared_experts.gate_proj.weight"},
    {Role::kSharedUp, "mlp.shared_experts.up_proj.weight"},
    {Role::kSharedDown, "mlp.shared_experts.down_proj.weight"},
});

constexpr std::array kGguf = std::to_array<RoleName>({
    {Role::kEmbedding, "token_embd.weight"},
    {Role::kFinalNorm, "output_norm.weight"},
    {Role::kHead, "output.weight"},
    {Role::kAttentionNorm, "attn_norm.weight"},
    {Role::kFfnNorm, "ffn_norm.weight"},
    {Role::kQ, "attn_q.weight"},
    {Role::kK, "attn_k.weight"},
    {Role::kV, "attn_v.weight"},
    {Role::kOut, "attn_output.weight"},
    {Role::kQNorm, "attn_q_norm.weight"},
    {Role::kKNorm, "attn_k_norm.weight"},
    {Role::kFfnGate, "ffn_gate.weight"},
    {Role::kFfnUp, "ffn_up.weight"},
    {Role::kFfnDown, "ffn_down.weight"},
});

std::string_view find(std::span<const RoleName> names, Role role) {
  const auto it = std::find_if(names.begin(), names.end(), [&](const RoleName& n) { return n.role == role; });
  return it == names.end() ? std::string_view{} : it->name;
}

}  // namespace

std::string_view usual_name(Role role) { return find(kUsual, role); }
std::string_view gguf_name(Role role) { return find(kGguf, role); }

std::string_view name_in(const NameMap& map, Role role) {
  const std::string_view own = find(map.names, role);
  return own.empty() ? usual_name(role) : own;
}

std::string numbered(std::string_view text, std::int64_t number) {
  const std::size_t at = text.find("{}");
  if (at == std::string_view::npos) return std::string(text);
  return std::string(text.substr(0, at)) + std::to_string(number) + std::string(text.substr(at + 2));
}

}  // namespace troupe::model
