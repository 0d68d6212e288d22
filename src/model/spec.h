/// @file
/// A model as data: a table of parts per layer, filled from config.json. There is no class per family.
///
/// Which family fills the table how stands in registry.cpp. A part of a new kind (latent attention, a delta rule,
/// experts, hyper-connections) is one more enumerator here, its parameters in parameters.cpp and its arithmetic in
/// blocks.cpp; nothing else asks for the family.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace troupe::model {

/// How an RMSNorm uses its weight: y = (w + weight_offset) * x / rms(x). Source: research/models.md 1.1.
struct NormSpec {
  double eps = 1e-6;
  double weight_offset = 0;  ///< 1 where the stored weight is zero-centred (Qwen3.5, Muse Spark).
};

enum class RopeKind : std::uint8_t {
  kDefault,  ///< base^(-2i/d).
  kLinear,   ///< All frequencies divided by `factor`.
  kLlama3,   ///< Low frequencies divided by `factor`, high ones kept, a linear ramp between.
  kYarn,     ///< Ramp by wavelength, and cos and sin scaled by `attention_factor`.
};

/// Rotary embedding, half-split: channel i is paired with i + width / 2. Source: research/models.md 1.2, 1.3.
struct RopeSpec {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000;
  std::int64_t width = 0;  ///< Channels of a head that rotate, counted from the first; 0 means none do.
  double factor = 1;
  double low_freq_factor = 1;         ///< llama3
  double high_freq_factor = 4;        ///< llama3
  std::int64_t original_context = 0;  ///< llama3, yarn: the length the model was trained at before scaling.
  double beta_fast = 32;              ///< yarn
  double beta_slow = 1;               ///< yarn
  bool truncate = true;               ///< yarn: the ramp's ends are rounded to whole channels.
  double attention_factor = 1;        ///< yarn: already resolved from attention_factor, mscale and mscale_all_dim.
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

enum class AttentionKind : std::uint8_t {
  kGroupedQuery,  ///< softmax(q k^T * scale) v, several query heads to a key head.
};

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kGroupedQuery;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 0;      ///< Of the scores; head_dim^-1/2 in all families so far.
  bool qk_norm = false;  ///< RMSNorm over head_dim of every query and key head, before the rotation.
  NormSpec q_norm, k_norm;
  std::int32_t rope = 0;  ///< Index into ModelSpec::ropes.
};

enum class FfnKind : std::uint8_t {
  kSwiGlu,  ///< down(silu(gate x) * up x).
};

struct FfnSpec {
  FfnKind kind = FfnKind::kSwiGlu;
  std::int64_t width = 0;
};

enum class ResidualKind : std::uint8_t {
  kPreNorm,  ///< h += f(norm(h)), twice a layer.
};

/// One decoder layer: which part stands in which place.
struct LayerSpec {
  NormSpec attention_norm;
  AttentionSpec attention;
  NormSpec ffn_norm;
  FfnSpec ffn;
  ResidualKind residual = ResidualKind::kPreNorm;
};

struct ModelSpec {
  std::string family;           ///< "llama", "qwen3": the config's model_type.
  std::int64_t vocab_size = 0;  ///< V: rows of the embedding and of the head.
  std::int64_t vocab_used =
      0;  ///< Ids below this exist; rows beyond only pad the vocabulary and take no probability. 0: all of them.
  std::int64_t width = 0;  ///< D.
  std::vector<LayerSpec> layers;
  std::vector<RopeSpec> ropes;  ///< The distinct rotary embeddings that layers refer to.
  NormSpec final_norm;
  bool tied = false;         ///< The head is the embedding.
  double init_std = 0.02;    ///< Standard deviation of fresh matrices.
  std::int64_t context = 0;  ///< max_position_embeddings: the longest sequence, in tokens.
  std::int64_t bos_id = -1;  ///< -1: none.
  std::int64_t pad_id = -1;  ///< -1: none.
  std::vector<std::int64_t> eos_ids;
  std::string stored_dtype = "float32";  ///< What the checkpoint was stored as; the arithmetic here is float32.

  [[nodiscard]] std::int64_t used_vocab() const { return vocab_used > 0 ? vocab_used : vocab_size; }
  [[nodiscard]] std::int64_t parameter_count() const;
};

/// Reads a config.json. Both spellings are accepted: rope_theta + rope_scaling, or rope_parameters; torch_dtype or
/// dtype. `where` names the file in errors. Errors: kInvalidArgument naming the key, its value and what is allowed.
[[nodiscard]] Result<ModelSpec> spec_from_config(const nlohmann::json& config, std::string_view where);

/// The config.json that spec_from_config reads back as the same spec, in Hugging Face's spelling of released models.
[[nodiscard]] nlohmann::json config_json(const ModelSpec& spec);

/// Sizes of a decoder of a named family, as an experiment states them.
struct DecoderSizes {
  std::int64_t vocab_size = 0;
  std::int64_t width = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  ///< 0: width / heads.
  std::int64_t ffn_width = 0;
  std::int64_t context = 2048;
  double rope_theta = 10000;
  double norm_eps = 1e-6;
  double init_std = 0.02;
  bool tied = true;
};

/// A fresh model of `family` with these sizes. Errors: kInvalidArgument naming the size that does not fit.
[[nodiscard]] Result<ModelSpec> spec_from_sizes(std::string_view family, const DecoderSizes& sizes);

/// The names that spec_from_config and spec_from_sizes accept.
[[nodiscard]] std::vector<std::string_view> family_names();

}  // namespace troupe::model
