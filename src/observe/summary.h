/// @file
/// summary.json: the run in numbers, for scripts; and the table that closes a run on the terminal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/result.h"

namespace troupe::observe {

/// Field names are the keys of the file; `eval_before` is {"eval":{"before":...}}. Absent values are null.
struct Summary {
  double wall_s = 0;
  double rss_peak_mib = 0;        ///< Peak over time of the sum of PSS over all processes of the run.
  std::uint64_t steps = 0;        ///< Optimizer steps of all stages.
  std::uint64_t tokens = 0;       ///< Trained tokens.
  std::uint64_t completions = 0;  ///< Delivered samples.
  std::optional<double> eval_before;
  std::optional<double> eval_after;
  std::uint64_t restarts = 0;  ///< Worker processes replaced.
  std::uint64_t prompts_dispatched = 0;
  std::uint64_t prompts_delivered = 0;
  std::uint64_t prompts_cancelled = 0;
  std::uint64_t policy_age_max = 0;        ///< In optimizer steps, over all trained tokens.
  std::optional<double> logprob_diff_max;  ///< Absent when no token was compared; never 0 for "not measured".
  std::uint64_t logprob_tokens_compared = 0;
  std::string exit = "failed";  ///< "done", "stopped" or "failed".
};

[[nodiscard]] nlohmann::json summary_json(const Summary& summary);
/// Errors: kCorrupt naming the field that is missing or has the wrong type.
[[nodiscard]] Result<Summary> summary_from_json(const nlohmann::json& document);
/// Replaces the file atomically.
[[nodiscard]] Status write_summary(const std::filesystem::path& path, const Summary& summary);
/// The closing table.
[[nodiscard]] std::string summary_table(const Summary& summary);

}  // namespace troupe::observe
