/// @file
/// How far the trainer's log-probs are from those the sampler recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace troupe::rl {

/// Sums over tokens of d = trainer - sampler. Two of them are kept: over all trained tokens, and over tokens of equal weights.
struct MismatchTotals {
  std::int64_t tokens = 0;
  std::int64_t different = 0;  ///< Tokens with d != 0.
  double kl = 0, kl_squares = 0, kl_max = 0; ///< r - d - 1 with r = exp(d).
  double mult_error = 0;       ///< exp(|d|).
  double ratio = 0;            ///< r.
  double diff = 0, diff_max = 0; ///< |d|.
  void add(const MismatchTotals& other);
};

/// Adds the tokens whose mask is set. Shapes: all [n].
void add_mismatch(MismatchTotals& totals, std::span<const float> trainer, std::span<const float> sampler,
                  std::span<const std::uint8_t> mask);

struct MismatchMetrics {
  double mismatch_kl_mean = 0, mismatch_kl_std = 0, mismatch_kl_max = 0;
  double token_mult_prob_error = 1;     ///< Mean exp(|d|); above 1.05 is an alarm.
  double sampling_importance_ratio = 1; ///< Mean exp(d).
  double logprob_diff_mean = 0, logprob_diff_max = 0;
  double ratio_tokens_different = 0;
  std::int64_t tokens = 0;
};
/// Nothing when no token was compared: an absent metric is never reported as 0.
[[nodiscard]] std::optional<MismatchMetrics> metrics(const MismatchTotals& totals);

} // namespace troupe::rl
