/// @file
/// Named algorithms (a table of conventions) and the combinations of options that are refused.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "rl/options.h"

namespace troupe::rl {

struct AlgorithmRow {
  std::string_view name; ///< "grpo", "dr_grpo", "dapo", "rloo", "gspo", "cispo".
  std::string_view help;
  AlgorithmOptions options;
};

/// Every algorithm that can be named in a config.
[[nodiscard]] std::span<const AlgorithmRow> algorithms();

/// The options an algorithm starts from. Errors: kInvalidConfig listing the known names.
[[nodiscard]] Result<AlgorithmOptions> algorithm_defaults(std::string_view name);

/// Checks ranges and combinations. `on_policy`: every sample is made by the weights that train on it (staleness 0).
/// Errors: kInvalidConfig: one sentence with the field, the value and what to set instead.
[[nodiscard]] Status validate(const AlgorithmOptions& options, bool on_policy);

/// Sampling whose log-probs are normalised over a kept set makes every ratio wrong by the kept mass, and kept sets are not recorded.
/// Errors: kInvalidConfig when top_p < 1, top_k > 0 or min_p > 0 is asked for in training.
[[nodiscard]] Status check_training_sampling(double top_p, std::int64_t top_k, double min_p);

} // namespace troupe::rl
