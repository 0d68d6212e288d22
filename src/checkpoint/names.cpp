#include <charconv>

#include "checkpoint/repository.h"

namespace troupe::checkpoint {
namespace {

// A decimal number without sign or leading zeros; moves `text` behind it.
template <class T>
bool take_number(std::string_view& text, T& value) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{} || (text.front() == '0' && parsed.ptr != text.data() + 1)) return false;
  text.remove_prefix(static_cast<std::size_t>(parsed.ptr - text.data()));
  return true;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string commit_name(PolicyVersion version) {
  return "step-" + std::to_string(version.step) + ".e" + std::to_string(version.epoch);
}

std::optional<PolicyVersion> parse_commit_name(std::string_view name) {
  PolicyVersion version;
  if (!take(name, "step-") || !take_number(name, version.step) || !take(name, ".e") ||
      !take_number(name, version.epoch) || !name.empty())
    return std::nullopt;
  return version;
}

}  // namespace troupe::checkpoint
