/// @file
/// What each parameter is for (its role) and what files of a family call it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace troupe::model {

/// The place a parameter has in its part.
enum class Role : std::uint8_t {
  // Of the model.
  kEmbedding, kFinalNorm, kHead, kHyperHeadFn, kHyperHeadBase, kHyperHeadScale,
  // Of a block for further tokens.
  kMtpEmbeddingNorm, kMtpHiddenNorm, kMtpProject, kMtpEmbeddingProject, kMtpHiddenProject, kMtpNorm,
  // Of a layer.
  kAttentionNorm, kFfnNorm, kFfnPostNorm, kAttentionResidual, kFfnResidual,
  kHyperAttentionFn, kHyperAttentionBase, kHyperAttentionScale, kHyperFfnFn, kHyperFfnBase, kHyperFfnScale,
  // Of attention.
  kQ, kK, kV, kOut, kQBias, kKBias, kVBias, kOutBias, kQNorm, kKNorm, kSinks, kOutGate,
  kQDown, kQDownNorm, kQUp, kKvDown, kKvDownNorm, kKvUp, kOutDown,
  kDeltaQkv, kDeltaZ, kDeltaBeta, kDeltaDecay, kDeltaConv, kDeltaDecayLog, kDeltaTimeBias, kDeltaNorm, kDeltaOut,
  kPoolValues, kPoolLogits, kPoolPosition, kPoolNorm,
  kIndexQ, kIndexWeights, kIndexPoolValues, kIndexPoolLogits, kIndexPoolPosition, kIndexPoolNorm,
  // Of feed-forward parts.
  kFfnGate, kFfnUp, kFfnDown, kRouter, kRouterBias, kRouterCorrection, kRouterTable,
  kExpertsGateUp, kExpertsGateUpBias, kExpertsDown, kExpertsDownBias, kExpertsIn, kExpertsInNorm, kExpertsOutNorm,
  kExpertsOut, kSharedGate, kSharedUp, kSharedDown, kSharedSwitch,
  kCount
};

struct RoleName {
  Role role;
  std::string_view name;
};

/// How a family's files spell names. A prefix may hold "{}", the number of the layer or block.
struct NameMap {
  std::string_view root;                ///< Before embedding and final norm.
  std::string_view layer;               ///< Before what belongs to a layer.
  std::string_view mtp = {};                 ///< Before what belongs to a block for further tokens.
  std::string_view mtp_layer = {};           ///< Before what belongs to its layer.
  bool mtp_counts_on = false;           ///< Blocks are numbered after the layers.
  std::span<const RoleName> names = {};      ///< Where they differ from the usual ones.
  std::string_view split_experts = {};  ///< Experts are stored one by one: before a name, "{}" is the expert.
  std::string_view expert_gate = {}, expert_up = {}, expert_down = {};
  std::string_view mtp_embedding = {}, mtp_head = {};  ///< Copies of embedding and head that a block brings along.
  std::string_view skipped = {};  ///< Towers for pictures and sound: prefixes of tensors that nobody reads, by commas.
};

/// The usual name, as Llama's files have it, or nothing.
[[nodiscard]] std::string_view usual_name(Role role);
/// llama.cpp's, or nothing.
[[nodiscard]] std::string_view gguf_name(Role role);
[[nodiscard]] std::string_view name_in(const NameMap& map, Role role);
/// `text` with "{}" replaced.
[[nodiscard]] std::string numbered(std::string_view text, std::int64_t number);

}  // namespace troupe::model
