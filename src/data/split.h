/// @file
/// Train or evaluation: decided by a hash of the text alone, so that equal texts never stand on
/// both sides, in any file order.
#pragma once

#include <string_view>

#include "data/options.h"

namespace troupe::data {

/// The split of a text. `eval_fraction` in [0, 1]. Stable for ever: not a function of the run's seed.
[[nodiscard]] Split split_of(std::string_view text, double eval_fraction);

} // namespace troupe::data
