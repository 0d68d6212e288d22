/// @file
/// Quantities as users write them: "4GiB", "30s", "1.5m", "200ms".
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace troupe {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;

/// A number of bytes. A type of its own, so that a config field cannot be mistaken for a count.
struct Bytes {
  std::uint64_t count = 0;
  friend auto operator<=>(const Bytes&, const Bytes&) = default;
};

/// Accepts "123", "4KiB", "4 MiB", "1.5GiB", "10kB", "10MB", "10GB", "1TiB". Errors: kInvalidArgument naming the accepted units.
[[nodiscard]] Result<Bytes> parse_bytes(std::string_view text);
/// Accepts "200us", "200ms", "30s", "1.5m", "2h", "1d". A number without a unit is refused. Errors: kInvalidArgument.
[[nodiscard]] Result<Duration> parse_duration(std::string_view text);

/// "1.5 GiB", "512 B".
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);
/// "250ms", "12.3s", "4m10s", "2h05m".
[[nodiscard]] std::string format_duration(Duration duration);

[[nodiscard]] inline double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
[[nodiscard]] inline Duration from_seconds(double s) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s)); }

} // namespace troupe
