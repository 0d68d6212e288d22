/// @file
/// From the rewards of one group to its advantages. A group is what was dispatched together, never "rows with the same prompt text".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/options.h"

namespace troupe::rl {

/// Advantages of one group.
/// Equal rewards give exactly 0 for every element, whatever the value. A group of one gives 0 under every convention: there is
/// nothing to compare with. Determinism: double arithmetic in the order given.
[[nodiscard]] std::vector<double> group_advantages(std::span<const double> rewards, const AdvantageOptions& options);

/// Advantages of several groups in one array. `group[i]` is the id of the group that row i was dispatched in; rows of a group need
/// not be neighbours.
[[nodiscard]] std::vector<double> advantages_by_group(std::span<const double> rewards, std::span<const std::uint64_t> group,
                                                      const AdvantageOptions& options);

/// Whether a group teaches nothing: its samples that take part in the loss all have the same reward, or none takes part.
/// `trained[i]` is 0 when the mask leaves no token of sample i. Compared for equality, never against a threshold.
[[nodiscard]] bool zero_signal(std::span<const double> rewards, std::span<const std::uint8_t> trained);

/// What a response of `length` tokens loses for using the last `buffer` tokens before `length_max`: 0 up to length_max - buffer,
/// then linearly down to -1 at length_max and beyond. Source: Yu et al., 2025, arXiv:2503.14476 (DAPO), eq. 13.
[[nodiscard]] double overlong_penalty(std::int64_t length, std::int64_t length_max, std::int64_t buffer);

} // namespace troupe::rl
