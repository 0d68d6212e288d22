#include "data/utf8.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace troupe::data {
namespace {

// What the lead byte promises: the length of the character and the range of its second byte (Unicode, table 3-7).
struct Lead {
  std::uint8_t length = 0; // 0: no character begins with this byte
  std::uint8_t second_min = 0x80, second_max = 0xBF;
};

constexpr Lead lead_of(std::uint8_t b) {
  if (b < 0x80) return {1};
  if (b < 0xC2) return {0};
  if (b < 0xE0) return {2};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b < 0xF0) return {3};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b < 0xF4) return {4};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

std::size_t ascii_prefix(std::string_view text) {
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (i < text.size() && static_cast<std::uint8_t>(text[i]) < 0x80) ++i;
  return i;
}

} // namespace

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const Lead lead = lead_of(byte(0));
  if (lead.length == 1) return {1, byte(0), true, false};
  if (lead.length == 0) return {1, 0xFFFD, false, false};
  char32_t code_point = byte(0) & (0x7Fu >> lead.length);
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {i, 0xFFFD, false, true};
    const std::uint8_t low = i == 1 ? lead.second_min : 0x80, high = i == 1 ? lead.second_max : 0xBF;
    if (byte(i) < low || byte(i) > high) return {i, 0xFFFD, false, false};
    code_point = code_point << 6 | (byte(i) & 0x3Fu);
  }
  return {lead.length, code_point, true, false};
}

bool is_valid_utf8(std::string_view text) {
  while (true) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return true;
    const Utf8Step step = utf8_step(text);
    if (!step.well_formed) return false;
    text.remove_prefix(step.length);
  }
}

std::string replace_ill_formed(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t ascii = ascii_prefix(text);
    out.append(text.substr(0, ascii));
    text.remove_prefix(ascii);
    if (text.empty()) break;
    const Utf8Step step = utf8_step(text);
    if (step.well_formed)
      out.append(text.substr(0, step.length));
    else
      append_utf8(out, 0xFFFD);
    text.remove_prefix(step.length);
  }
  return out;
}

std::size_t incomplete_tail(std::string_view text) {
  for (std::size_t n = 1; n <= 3 && n <= text.size(); ++n) {
    const std::string_view tail = text.substr(text.size() - n);
    if ((static_cast<std::uint8_t>(tail[0]) & 0xC0) == 0x80) continue; // a continuation byte: the lead is further left
    const Utf8Step step = utf8_step(tail);
    return step.incomplete && step.length == n ? n : 0;
  }
  return 0;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

} // namespace troupe::data
