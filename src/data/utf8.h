/// @file
/// UTF-8 as Unicode defines it: shortest forms, no surrogates, nothing above U+10FFFF; ill-formed
/// input falls into maximal parts.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe::data {

/// One step through a text.
struct Utf8Step {
  std::size_t length = 0;  ///< Bytes to move on, at least 1.
  char32_t code_point = 0; ///< U+FFFD where the bytes are ill-formed.
  bool well_formed = true;
  bool incomplete = false; ///< Ill-formed only because the text ends: more bytes could complete it.
};

/// Looks at the character (or maximal ill-formed part) at the start of a text that is not empty.
[[nodiscard]] Utf8Step utf8_step(std::string_view text);

[[nodiscard]] bool is_valid_utf8(std::string_view text);

/// Replaces each maximal ill-formed part by U+FFFD.
[[nodiscard]] std::string replace_ill_formed(std::string_view text);

/// How many bytes at the end are the beginning of a character that is not complete yet.
[[nodiscard]] std::size_t incomplete_tail(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

} // namespace troupe::data
