#include "model/registry.h"

#include <array>
#include <cmath>

namespace troupe::model {

namespace {

constexpr std::array<Family, 2> kFamilies = {{
    {"llama", "LlamaForCausalLM", false, 1e-6, 10000, true},
    {"qwen3", "Qwen3ForCausalLM", true, 1e-6, 10000, false},
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

Status check_sizes(const DecoderSizes& sizes, std::string_view where) {
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument, why, std::string(where));
  };
  const std::array<Bound, 8> bounds = {{{"vocab_size", sizes.vocab_size, 1 << 24},
                                        {"hidden_size", sizes.width, kNormWidthMax},
                                        {"num_hidden_layers", sizes.layers, 4096},
                                        {"num_attention_heads", sizes.heads, 4096},
                                        {"num_key_value_heads", sizes.kv_heads, 4096},
                                        {"head_dim", sizes.head_dim, kHeadDimMax},
                                        {"intermediate_size", sizes.ffn_width, 1 << 20},
                                        {"max_position_embeddings", sizes.context, 1 << 28}}};
  for (const Bound& bound : bounds)
    if (bound.value < 1 || bound.value > bound.max)
      return refuse(std::string(bound.name) + " is " + std::to_string(bound.value) + ", allowed are 1 to " +
                    std::to_string(bound.max));
  if (sizes.heads % sizes.kv_heads != 0)
    return refuse("num_attention_heads (" + std::to_string(sizes.heads) +
                  ") must be a multiple of num_key_value_heads (" + std::to_string(sizes.kv_heads) + ")");
  if (sizes.head_dim % kHeadDimStep != 0)
    return refuse("head_dim is " + std::to_string(sizes.head_dim) + ", it must be a multiple of 16");
  if (!(sizes.norm_eps > 0) || !std::isfinite(sizes.norm_eps)) return refuse("rms_norm_eps must be a positive number");
  if (!(sizes.rope_theta > 1) || !std::isfinite(sizes.rope_theta)) return refuse("rope_theta must be a number above 1");
  if (!(sizes.init_std >= 0) || !std::isfinite(sizes.init_std))
    return refuse("initializer_range must be a number from 0 on");
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
