/// @file
/// Reading fields of JSON that may hold anything.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "base/result.h"

namespace troupe::checkpoint {

/// Whether it is an integer of at least 0, whether it was parsed or built.
[[nodiscard]] inline bool is_count(const nlohmann::json& json) {
  return json.is_number_unsigned() || (json.is_number_integer() && json.get<std::int64_t>() >= 0);
}

/// The unsigned integer or string `key` of an object. Errors: kCorrupt naming the key.
template <class T>
[[nodiscard]] Result<T> field(const nlohmann::json& object, const char* key) {
  const auto corrupt = [key] {
    return fail(ErrorCode::kCorrupt, std::string("field \"") + key + "\" is missing or of the wrong kind");
  };
  if (!object.is_object()) return corrupt();
  const auto found = object.find(key);
  if (found == object.end()) return corrupt();
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return corrupt();
  } else {
    static_assert(std::is_unsigned_v<T>);
    if (!is_count(*found) || found->template get<std::uint64_t>() > std::numeric_limits<T>::max()) return corrupt();
  }
  return found->template get<T>();
}

/// 16 hexadecimal digits back to a number. Errors: kCorrupt.
[[nodiscard]] Result<std::uint64_t> hex_field(const nlohmann::json& object, const char* key);

}  // namespace troupe::checkpoint
