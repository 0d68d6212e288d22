/// @file
/// Parsing JSON that comes from outside. For .cpp files only (the parser is heavy).
#pragma once

#include <concepts>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/result.h"

namespace troupe {

inline constexpr int kJsonDepthMax = 64; ///< Deeper than anything that is meant, far from any stack's end.

/// Parses one document. `where` is the file (or file:line) for messages.
/// Errors: kCorrupt with line and column; also for ill-formed UTF-8 and for nesting deeper than kJsonDepthMax.
[[nodiscard]] Result<nlohmann::json> parse_json(std::string_view text, const std::string& where);

/// The string or integer `key` of an object, exactly: no fraction is cut off, no integer wrapped into a narrower type, as json::get does.
/// Errors: kCorrupt naming the key.
template <class T>
  requires std::same_as<T, std::string> || (std::integral<T> && !std::same_as<T, bool>)
[[nodiscard]] Result<T> json_field(const nlohmann::json& object, const char* key) {
  const auto corrupt = [key] { return fail(ErrorCode::kCorrupt, std::string("field \"") + key + "\" is missing or of the wrong kind"); };
  if (!object.is_object()) return corrupt();
  const auto found = object.find(key);
  if (found == object.end()) return corrupt();
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return corrupt();
  } else {
    const bool fits = found->is_number_unsigned() ? std::in_range<T>(found->template get<std::uint64_t>())
                                                  : found->is_number_integer() && std::in_range<T>(found->template get<std::int64_t>());
    if (!fits) return corrupt();
  }
  return found->template get<T>();
}

} // namespace troupe
