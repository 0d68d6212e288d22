/// @file
/// Programmer mistakes stop the process, in every build type.
#pragma once

#include <source_location>
#include <string_view>

namespace troupe {

/// Prints the place, the condition and the reason to stderr and aborts.
[[noreturn]] void check_failed(std::string_view condition, std::string_view why,
                               std::source_location where = std::source_location::current());

} // namespace troupe

/// Aborts with `why` unless the condition holds. For invariants, never for user input.
#define TROUPE_CHECK(condition, why)                                  \
  do {                                                                \
    if (!(condition)) ::troupe::check_failed(#condition, (why));      \
  } while (false)
