/// @file
/// Picks effects out of what a core answered, and a time to count from.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "protocol/types.h"

namespace troupe::protocol {

using namespace std::chrono_literals;

/// Virtual time zero plus `d`.
inline TimePoint at(Duration d) { return TimePoint{} + std::chrono::hours(1) + d; }

/// All effects of one kind, in order.
template <class E, class Effect>
std::vector<E> all(const std::vector<Effect>& effects) {
  std::vector<E> found;
  for (const Effect& effect : effects) {
    if (const E* e = std::get_if<E>(&effect)) found.push_back(*e);
  }
  return found;
}

template <class E, class Effect>
bool has(const std::vector<Effect>& effects) {
  return !all<E>(effects).empty();
}

inline WorkerId rollout_worker(std::uint32_t index, std::uint32_t incarnation = 0) {
  return {Role::kRollout, index, incarnation};
}

} // namespace troupe::protocol
