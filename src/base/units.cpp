#include "base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace troupe {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

// Splits "1.5 GiB" into 1.5 and "GiB".
Result<std::pair<double, std::string_view>> split(std::string_view text, std::string_view what) {
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (ec != std::errc{} || !std::isfinite(value) || value < 0)
    return fail(ErrorCode::kInvalidArgument, "\"" + std::string(text) + "\" is not a " + std::string(what));
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  return std::pair{value, unit};
}

template <std::size_t N>
Result<double> scaled(std::string_view text, std::string_view what, const std::array<Unit, N>& units) {
  TROUPE_TRY(const auto parts, split(text, what));
  std::string names;
  for (const Unit& unit : units) {
    if (unit.name == parts.second) return parts.first * unit.factor;
    if (!unit.name.empty()) names += (names.empty() ? "" : ", ") + std::string(unit.name);
  }
  return fail(ErrorCode::kInvalidArgument, "\"" + std::string(text) + "\" is not a " + std::string(what) + " (units: " + names + ")");
}

constexpr std::array<Unit, 10> kByteUnits = {{{"", 1}, {"B", 1}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0},
                                              {"TiB", 1099511627776.0}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}};
constexpr std::array<Unit, 7> kTimeUnits = {{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 6e10}, {"h", 3.6e12}, {"d", 8.64e13}}};

} // namespace

Result<Bytes> parse_bytes(std::string_view text) {
  TROUPE_TRY(const double value, scaled(text, "size", kByteUnits));
  if (value >= 0x1p63) return fail(ErrorCode::kInvalidArgument, "\"" + std::string(text) + "\" is larger than 8 EiB");
  return Bytes{static_cast<std::uint64_t>(std::llround(value))};
}

Result<Duration> parse_duration(std::string_view text) {
  TROUPE_TRY(const double value, scaled(text, "duration", kTimeUnits));
  if (value >= 9.2e18) return fail(ErrorCode::kInvalidArgument, "\"" + std::string(text) + "\" is longer than 292 years");
  return Duration{std::llround(value)};
}

std::string format_bytes(std::uint64_t bytes) {
  static constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 6) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 || value == std::floor(value) ? "%.0f %s" : "%.1f %s", value, kNames[unit]);
  return text;
}

std::string format_duration(Duration duration) {
  const double s = seconds(duration);
  char text[48];
  if (s < 1) std::snprintf(text, sizeof text, "%.0fms", s * 1e3);
  else if (s < 60) std::snprintf(text, sizeof text, "%.1fs", s);
  else if (s < 3600) std::snprintf(text, sizeof text, "%dm%02ds", static_cast<int>(s) / 60, static_cast<int>(s) % 60);
  else std::snprintf(text, sizeof text, "%dh%02dm", static_cast<int>(s) / 3600, static_cast<int>(s) / 60 % 60);
  return text;
}

} // namespace troupe
