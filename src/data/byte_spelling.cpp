#include "data/byte_spelling.h"

#include <array>
#include <cstdint>

#include "data/utf8.h"

namespace troupe::data {
namespace {

constexpr char32_t kFirstStandIn = 0x100;
constexpr std::size_t kStandIns = 68;

constexpr bool is_printable(int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; }

struct Tables {
  std::array<char32_t, 256> to_char{};
  std::array<std::uint8_t, kFirstStandIn + kStandIns> to_byte{};
  std::array<bool, kFirstStandIn + kStandIns> known{};
};

constexpr Tables make_tables() {
  Tables t;
  char32_t next = kFirstStandIn;
  for (int b = 0; b < 256; ++b) {
    const char32_t c = is_printable(b) ? static_cast<char32_t>(b) : next++;
    t.to_char[b] = c;
    t.to_byte[c] = static_cast<std::uint8_t>(b);
    t.known[c] = true;
  }
  return t;
}

constexpr Tables kTables = make_tables();

} // namespace

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char c : bytes) append_utf8(out, kTables.to_char[static_cast<std::uint8_t>(c)]);
  return out;
}

std::optional<std::string> unspell_bytes(std::string_view spelling) {
  std::string out;
  out.reserve(spelling.size());
  while (!spelling.empty()) {
    const Utf8Step step = utf8_step(spelling);
    if (step.code_point >= kTables.known.size() || !kTables.known[step.code_point]) return std::nullopt;
    out.push_back(static_cast<char>(kTables.to_byte[step.code_point]));
    spelling.remove_prefix(step.length);
  }
  return out;
}

} // namespace troupe::data
