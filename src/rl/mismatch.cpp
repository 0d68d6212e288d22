#include "rl/mismatch.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace troupe::rl {

void MismatchTotals::add(const MismatchTotals& other) {
  tokens += other.tokens;
  different += other.different;
  kl += other.kl;
  kl_squares += other.kl_squares;
  kl_max = std::max(kl_max, other.kl_max);
  mult_error += other.mult_error;
  ratio += other.ratio;
  diff += other.diff;
  diff_max = std::max(diff_max, other.diff_max);
}

void add_mismatch(MismatchTotals& totals, std::span<const float> trainer, std::span<const float> sampler,
                  std::span<const std::uint8_t> mask) {
  TROUPE_CHECK(trainer.size() == sampler.size() && trainer.size() == mask.size(), "one entry for each token");
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0) continue;
    const double d = static_cast<double>(trainer[i]) - static_cast<double>(sampler[i]);
    const double r = std::exp(d);
    const double kl = std::expm1(d) - d;
    ++totals.tokens;
    totals.different += d != 0 ? 1 : 0;
    totals.kl += kl;
    totals.kl_squares += kl * kl;
    totals.kl_max = std::max(totals.kl_max, kl);
    totals.mult_error += std::exp(std::abs(d));
    totals.ratio += r;
    totals.diff += std::abs(d);
    // A NaN must show: std::max would drop it.
    totals.diff_max = std::isnan(d) ? d : std::max(totals.diff_max, std::abs(d));
  }
}

std::optional<MismatchMetrics> metrics(const MismatchTotals& totals) {
  if (totals.tokens == 0) return std::nullopt;
  const auto n = static_cast<double>(totals.tokens);
  MismatchMetrics m;
  m.mismatch_kl_mean = totals.kl / n;
  m.mismatch_kl_std = std::sqrt(std::max(0.0, totals.kl_squares / n - m.mismatch_kl_mean * m.mismatch_kl_mean));
  m.mismatch_kl_max = totals.kl_max;
  m.token_mult_prob_error = totals.mult_error / n;
  m.sampling_importance_ratio = totals.ratio / n;
  m.logprob_diff_mean = totals.diff / n;
  m.logprob_diff_max = totals.diff_max;
  m.ratio_tokens_different = static_cast<double>(totals.different) / n;
  m.tokens = totals.tokens;
  return m;
}

} // namespace troupe::rl
