/// @file
/// What a model costs: parameters, operations and memory, counted from its table of parts.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "model/kv_cache.h"
#include "model/parameters.h"
#include "model/spec.h"

namespace troupe::plan {

/// Where parameters belong.
enum class Component : std::uint8_t {
  kEmbedding,
  kHead,
  kAttention,
  kRouter,
  kExperts,
  kSharedExperts,
  kFeedForward,
  kNorms,
  kResidual,       ///< Hyper-connections and gates.
  kFurtherTokens,  ///< Blocks that predict further tokens, whole.
  kRules,          ///< Tables and corrections of routers: no gradient changes them.
  kCount
};
[[nodiscard]] std::string_view to_string(Component component);
[[nodiscard]] Component component_of(const model::ParameterSpec& row, const model::ModelSpec& spec);

struct ParameterCounts {
  std::array<std::int64_t, static_cast<std::size_t>(Component::kCount)> of{};
  std::int64_t total = 0;    ///< Without kFurtherTokens and kRules.
  std::int64_t active = 0;   ///< Of `total`, what one token uses: `chosen` of `count` experts.
  std::int64_t trained = 0;  ///< What the optimizer changes, blocks for further tokens included.
  std::int64_t stored = 0;   ///< Everything that a checkpoint holds.
  [[nodiscard]] std::int64_t operator[](Component c) const { return of[static_cast<std::size_t>(c)]; }
};
[[nodiscard]] ParameterCounts count_parameters(const model::ModelSpec& spec);

/// Floating-point operations of training one token of a sequence, forward and backward; a third of each is the forward
/// pass. The conventions are README.md's. Blocks for further tokens are left out.
struct TokenOperations {
  double projections = 0;
  double attention = 0;           ///< Every layer over all T keys; compressed attention over the keys that it sees.
  double attention_windowed = 0;  ///< The same, sliding windows counted as such.
  double extra = 0;               ///< Recurrences and indexers.
  [[nodiscard]] double total() const { return projections + attention + extra; }
};
[[nodiscard]] TokenOperations count_operations(const model::ModelSpec& spec, std::int64_t sequence_tokens);

/// What generation keeps: keys and values of heads in the precision of the products, all else in float32.
struct CacheCost {
  double bytes_per_token = 0;             ///< Keys, values, latents, entries.
  std::int64_t bytes_per_sequence = 0;    ///< States, both of their turns.
  std::int64_t bytes_at_context = 0;      ///< Of one sequence as long as the context.
};
[[nodiscard]] CacheCost count_cache(const model::ModelSpec& spec,
                                    kernels::Precision precision = kernels::Precision::kFloat32);

}  // namespace troupe::plan
