/// @file
/// A model as data: a table of parts per layer, filled from config.json. There is no class per family.
///
/// Which family fills the table how stands in registry.cpp and families.cpp. A part of a new kind is one more enumerator
/// here, its parameters in parameters.cpp and its arithmetic in a file that blocks.cpp calls; nothing else asks for the
/// family. What a part keeps between tokens when generating is cache_of's answer (kv_cache.h).
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/router.h"

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

/// Angles of a rotary embedding. Grouped-query attention rotates the first `width` channels of a head half-split (channel
/// i with i + width / 2), latent and compressed attention the last ones in neighbouring pairs. Source: models.md 1.2, 1.3.
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
  kLatent,        ///< The same over one low-rank row per token that all heads share (DeepSeek-V3).
  kDeltaNet,      ///< A linear recurrence with a state per head instead of keys and values (Qwen3.5).
  kCompressed,    ///< A window of tokens and entries that pool earlier ones (DeepSeek-V4).
};

/// What multiplies the output of the heads, before the last projection.
enum class AttentionGate : std::uint8_t {
  kNone,
  kInQuery,  ///< sigmoid of further rows of the query projection: per head, query then gate.
  kOwn,      ///< sigmoid of a projection of its own, after a norm without weight over each head.
};

/// kLatent. Source: research/models.md 6.3. The cache holds kv_rank + rope_dim numbers a token; the two halves of kv_b are
/// absorbed into the query and the output, when training as when generating.
struct LatentSpec {
  std::int64_t q_rank = 0;  ///< 0: queries are projected at once.
  std::int64_t kv_rank = 0;
  std::int64_t nope_dim = 0, rope_dim = 0, value_dim = 0;
};

/// kDeltaNet. Source: research/models.md 5.3.
struct DeltaSpec {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t taps = 0;  ///< Of the convolution.
  [[nodiscard]] std::int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

/// kCompressed. Source: research/models.md 7.4.
struct CompressSpec {
  std::int64_t ratio = 0;  ///< Tokens of an entry; 0: only the window.
  bool overlap = false;    ///< An entry also pools the window before its own.
  std::int64_t index_heads = 0, index_dim = 0;
  std::int64_t index_top = 0;  ///< Entries that a query sees, chosen by the indexer; 0: all, and no indexer.
  std::int64_t q_rank = 0;
  std::int64_t rope_dim = 0;
  std::int64_t out_groups = 0, out_rank = 0;
};

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kGroupedQuery;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 0;      ///< Of the scores.
  bool qk_norm = false;  ///< RMSNorm over head_dim of every query and key head, before the rotation.
  NormSpec q_norm, k_norm;
  bool qk_norm_weights = true;  ///< false: the norms have no weight; queries are multiplied by `q_multiplier`.
  double q_multiplier = 1;
  std::int32_t rope = 0;    ///< Index into ModelSpec::ropes; -1: nothing rotates.
  std::int64_t window = 0;  ///< Tokens a query sees, itself included; 0: all.
  bool sinks = false;       ///< A learned logit per head in the denominator.
  bool biases = false;      ///< Of all four projections.
  AttentionGate gate = AttentionGate::kNone;
  double out_norm_eps = 0;  ///< kOwn: of the norm over each head.
  LatentSpec latent;
  DeltaSpec delta;
  CompressSpec compress;
};

enum class FfnKind : std::uint8_t {
  kSwiGlu,   ///< down(silu(gate x) * up x).
  kExperts,  ///< A router chooses some of many; others may be shared by all tokens.
};

/// What stands between the two projections of an expert (tensor/parts.h, GatedUnit).
struct UnitSpec {
  double limit = 0, alpha = 1, up_offset = 0;
};

/// kExperts. Source: research/models.md 4, 5.4, 6.4, 7.5, 8, 9.
struct ExpertsSpec {
  std::int64_t count = 0;   ///< E
  std::int64_t chosen = 0;  ///< k
  std::int64_t width = 0;   ///< Of one expert.
  kernels::RouterScore score = kernels::RouterScore::kSoftmax;
  bool normalise = true;
  double guard = 0, scale = 1;
  double logit_multiplier = 1;
  bool router_bias = false;  ///< A bias that trains.
  bool correction = false;   ///< A bias that only chooses, and is moved by balance.h instead of the gradient.
  bool hash = false;         ///< The token's id chooses.
  std::int64_t groups = 1, groups_kept = 1;
  bool columns = false;  ///< Weights are stored input-major with gate and up in turn (GPT-OSS).
  bool biases = false;
  UnitSpec unit;
  std::int64_t shared_width = 0;  ///< 0: no shared expert.
  bool shared_gate = false;       ///< The shared expert is multiplied by a sigmoid.
  UnitSpec shared_unit;
  std::int64_t latent_width = 0;  ///< Experts work between two projections, at this width; 0: at the model's.
  NormSpec latent_norm;
  double out_norm_eps = 0;       ///< > 0: the norm behind each expert.
  double aux_coefficient = 0;    ///< Of the load-balancing loss (balance.h).
};

struct FfnSpec {
  FfnKind kind = FfnKind::kSwiGlu;
  std::int64_t width = 0;
  ExpertsSpec experts;
};

enum class ResidualKind : std::uint8_t {
  kPreNorm,  ///< h += f(norm(h)), twice a layer.
  kHyper,    ///< Several streams, mixed before and after f (DeepSeek-V4). Source: research/models.md 7.3.
  kGated,    ///< h = alpha h + beta n(f(norm(h))), alpha and beta per channel (Muse Spark). Source: models.md 9.
};

/// One decoder layer: which part stands in which place.
struct LayerSpec {
  NormSpec attention_norm;
  AttentionSpec attention;
  NormSpec ffn_norm;
  FfnSpec ffn;
  ResidualKind residual = ResidualKind::kPreNorm;
  double post_norm_eps = 0;     ///< kGated
  double gate_temperature = 1;  ///< kGated
};

/// kHyper, for the whole model.
struct HyperSpec {
  std::int64_t streams = 1;
  std::int64_t iterations = 0;
  double eps = 0;
};

/// How a block that predicts the token after the next one joins hidden state and embedding.
enum class MtpJoin : std::uint8_t {
  kConcatenate,  ///< project([norm(embedding); norm(hidden after the final norm)])
  kPerStream,    ///< project(norm(embedding)) + project(norm(stream)), for each stream.
};

struct ModelSpec {
  std::string family;           ///< A row of registry.cpp.
  std::int64_t vocab_size = 0;  ///< V: rows of the embedding and of the head.
  std::int64_t vocab_used =
      0;  ///< Ids below this exist; rows beyond only pad the vocabulary and take no probability. 0: all of them.
  std::int64_t width = 0;  ///< D.
  std::vector<LayerSpec> layers;
  std::vector<RopeSpec> ropes;  ///< The distinct rotary embeddings that layers refer to.
  NormSpec final_norm;
  bool tied = false;           ///< The head is the embedding.
  bool embedding_norm = false;  ///< A norm without weight behind the embedding, with the final norm's eps.
  double logit_multiplier = 1;
  double logit_cap = 0;  ///< > 0: logits are cap * tanh(multiplier * x / cap).
  HyperSpec hyper;
  std::vector<LayerSpec> mtp;  ///< Blocks that predict further tokens; usually none or one.
  MtpJoin mtp_join = MtpJoin::kConcatenate;
  NormSpec mtp_norm;
  std::string config;  ///< The config.json it was read from, which an export writes again; empty: made from sizes.
  double init_std = 0.02;    ///< Standard deviation of fresh matrices.
  std::int64_t context = 0;  ///< max_position_embeddings: the longest sequence, in tokens.
  std::int64_t bos_id = -1;  ///< -1: none.
  std::int64_t pad_id = -1;  ///< -1: none.
  std::vector<std::int64_t> eos_ids;
  std::string stored_dtype = "float32";  ///< What the checkpoint was stored as; the arithmetic here is float32.

  [[nodiscard]] std::int64_t used_vocab() const { return vocab_used > 0 ? vocab_used : vocab_size; }
  [[nodiscard]] std::int64_t parameter_count() const;
};

/// Reads a config.json. A key that nobody knows and that is switched on is refused: it may change the maths. Both spellings are accepted: rope_theta + rope_scaling, or rope_parameters; torch_dtype or
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

/// A fresh model of `family` ("llama" or "qwen3": the others have more parts than sizes say) with these sizes.
/// Errors: kInvalidArgument naming the size that does not fit.
[[nodiscard]] Result<ModelSpec> spec_from_sizes(std::string_view family, const DecoderSizes& sizes);

/// The names that spec_from_config accepts.
[[nodiscard]] std::vector<std::string_view> family_names();

}  // namespace troupe::model
