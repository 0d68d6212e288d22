/// @file
/// Arithmetic problems by rule: problem `index` is a pure function of (options, seed, split), and
/// the splits share no question.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "data/options.h"

namespace troupe::data {

struct Problem {
  std::string question;
  std::string answer; ///< A decimal integer.
};

/// Errors: kInvalidArgument naming the field that is out of range, and when one of the splits would be empty.
[[nodiscard]] Status check_options(const ArithmeticOptions& options);

/// Problem `index` of a split. The options passed `check_options`.
/// Training problems are drawn at random. Evaluation problems of kind "sums" are all different until the split is used
/// up (`distinct_problems`), then repeat.
[[nodiscard]] Problem make_problem(const ArithmeticOptions& options, std::uint64_t seed, std::uint64_t index,
                                   Split split);

/// How many different "sums" a split has; 0 for word problems, whose number is not counted.
[[nodiscard]] std::uint64_t distinct_problems(const ArithmeticOptions& options, Split split);

} // namespace troupe::data
