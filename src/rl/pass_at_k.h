/// @file
/// The unbiased estimate of "at least one of k samples is right".
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace troupe::rl {

/// 1 - C(n-c, k) / C(n, k) for c right answers among n samples. Nothing when n < k: it cannot be estimated then.
/// Source: Chen et al., 2021, arXiv:2107.03374, eq. 1.
[[nodiscard]] std::optional<double> pass_at_k(std::int64_t n, std::int64_t correct, std::int64_t k);

struct ProblemCount {
  std::int64_t samples = 0;
  std::int64_t correct = 0;
};
/// Mean over problems. Nothing when there is no problem or one of them has fewer than k samples.
[[nodiscard]] std::optional<double> mean_pass_at_k(std::span<const ProblemCount> problems, std::int64_t k);

} // namespace troupe::rl
