#include "rl/pass_at_k.h"

namespace troupe::rl {

std::optional<double> pass_at_k(std::int64_t n, std::int64_t correct, std::int64_t k) {
  if (k < 1 || n < k || correct < 0 || correct > n) return std::nullopt;
  if (n - correct < k) return 1.0;
  // C(n-c, k) / C(n, k) as a product of k factors below 1, without factorials.
  double none = 1;
  for (std::int64_t i = n - correct + 1; i <= n; ++i) none *= 1.0 - static_cast<double>(k) / static_cast<double>(i);
  return 1.0 - none;
}

std::optional<double> mean_pass_at_k(std::span<const ProblemCount> problems, std::int64_t k) {
  if (problems.empty()) return std::nullopt;
  double sum = 0;
  for (const ProblemCount& problem : problems) {
    const auto one = pass_at_k(problem.samples, problem.correct, k);
    if (!one) return std::nullopt;
    sum += *one;
  }
  return sum / static_cast<double>(problems.size());
}

} // namespace troupe::rl
