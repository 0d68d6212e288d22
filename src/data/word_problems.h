/// @file
/// Little stories whose end is a number: a person has some things, things happen, how many are there now?
#pragma once

#include "base/rng.h"
#include "data/arithmetic.h"

namespace troupe::data {

inline constexpr int kWordProblemStepsMax = 4; ///< Longer stories repeat themselves.

/// Draws one story of steps_min..steps_max steps. Every number in between is in 0..number_max *
/// (steps + 1) and an integer.
[[nodiscard]] Problem word_problem(const ArithmeticOptions& options, Rng& rng);

} // namespace troupe::data
