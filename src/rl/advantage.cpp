#include "rl/advantage.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"

namespace troupe::rl {

std::vector<double> group_advantages(std::span<const double> rewards, const AdvantageOptions& options) {
  std::vector<double> advantages(rewards.size(), 0.0);
  if (rewards.empty()) return advantages;
  const auto [lowest, highest] = std::minmax_element(rewards.begin(), rewards.end());
  // r - mean(r) is 0 in exact arithmetic; computed, it is a rounding residue that a tiny standard deviation would blow up.
  if (*lowest == *highest) return advantages;

  const auto count = static_cast<double>(rewards.size());
  double sum = 0;
  for (double r : rewards) sum += r;
  const double mean = sum / count;
  double squares = 0;
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    advantages[i] = rewards[i] - mean;
    squares += advantages[i] * advantages[i];
  }
  double factor = options.baseline == Baseline::kLeaveOneOut ? count / (count - 1) : 1.0;
  if (options.std == StdConvention::kSample) factor /= std::sqrt(squares / (count - 1)) + options.eps;
  if (options.std == StdConvention::kPopulation) factor /= std::sqrt(squares / count) + options.eps;
  for (double& a : advantages) a *= factor;
  return advantages;
}

std::vector<double> advantages_by_group(std::span<const double> rewards, std::span<const std::uint64_t> group,
                                        const AdvantageOptions& options) {
  TROUPE_CHECK(rewards.size() == group.size(), "one group id for each reward");
  std::map<std::uint64_t, std::vector<std::size_t>> rows_of;
  for (std::size_t i = 0; i < group.size(); ++i) rows_of[group[i]].push_back(i);
  std::vector<double> advantages(rewards.size());
  for (const auto& [id, rows] : rows_of) {
    std::vector<double> own;
    for (std::size_t row : rows) own.push_back(rewards[row]);
    const std::vector<double> result = group_advantages(own, options);
    for (std::size_t k = 0; k < rows.size(); ++k) advantages[rows[k]] = result[k];
  }
  return advantages;
}

bool zero_signal(std::span<const double> rewards, std::span<const std::uint8_t> trained) {
  TROUPE_CHECK(rewards.size() == trained.size(), "one mask for each reward");
  const double* first = nullptr;
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    if (trained[i] == 0) continue;
    if (first != nullptr && *first != rewards[i]) return false;
    if (first == nullptr) first = &rewards[i];
  }
  return true;
}

double overlong_penalty(std::int64_t length, std::int64_t length_max, std::int64_t buffer) {
  if (buffer <= 0) return 0;
  const double over = static_cast<double>(length - (length_max - buffer));
  return -std::clamp(over / static_cast<double>(buffer), 0.0, 1.0) + 0.0; // + 0.0: never -0
}

} // namespace troupe::rl
