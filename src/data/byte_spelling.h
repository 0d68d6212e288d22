/// @file
/// GPT-2's way to spell bytes as printable characters: 33-126, 161-172 and 174-255 stand for themselves, the other 68
/// bytes are U+0100..U+0143 in order. Vocabularies in files are spelled like this.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace troupe::data {

/// Bytes to their spelling.
[[nodiscard]] std::string spell_bytes(std::string_view bytes);
/// The spelling back to bytes; nothing when a character is no stand-in.
[[nodiscard]] std::optional<std::string> unspell_bytes(std::string_view spelling);

} // namespace troupe::data
