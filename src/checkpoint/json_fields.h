/// @file
/// Reading fields of JSON that may hold anything.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace troupe::checkpoint {

/// Whether it is an integer of at least 0, whether it was parsed or built.
[[nodiscard]] inline bool is_count(const nlohmann::json& json) {
  return json.is_number_unsigned() || (json.is_number_integer() && json.get<std::int64_t>() >= 0);
}

/// The integer or string `key` of an object. Errors: kCorrupt naming the key.
template <class T>
[[nodiscard]] Result<T> field(const nlohmann::json& object, const char* key) {
  return json_field<T>(object, key);
}

/// 16 hexadecimal digits back to a number. Errors: kCorrupt.
[[nodiscard]] Result<std::uint64_t> hex_field(const nlohmann::json& object, const char* key);

}  // namespace troupe::checkpoint
