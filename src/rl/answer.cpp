#include "rl/answer.h"

#include <array>
#include <numeric>

namespace troupe::rl {
namespace {

using Int = Rational::Int;

constexpr std::array<std::string_view, 5> kCurrency = {"\\$", "$", "\xe2\x82\xac", "\xc2\xa3", "\xc2\xa5"}; // \$ $ euro pound yen
constexpr std::string_view kMinusSign = "\xe2\x88\x92"; // U+2212
constexpr int kExponentMax = 37;                        // 10^38 does not fit 127 bits

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

bool digit_at(std::string_view text, std::size_t at) { return at < text.size() && is_digit(text[at]); }

/// Multiplies by ten and adds a digit; false when it does not fit.
bool push_digit(Int& value, int digit) {
  return !__builtin_mul_overflow(value, Int{10}, &value) && !__builtin_add_overflow(value, Int{digit}, &value);
}

bool multiply(Int& value, Int factor) { return !__builtin_mul_overflow(value, factor, &value); }

Int gcd(Int a, Int b) {
  while (b != 0) {
    const Int rest = a % b;
    a = b, b = rest;
  }
  return a < 0 ? -a : a;
}

Rational reduced(Int numerator, Int denominator) {
  const Int common = gcd(numerator, denominator);
  return common > 1 ? Rational{numerator / common, denominator / common} : Rational{numerator, denominator};
}

/// Digits with thousands separators, point and exponent at the start of a text.
struct Magnitude {
  std::size_t length = 0; ///< Bytes that belong to the number; 0: no number.
  Rational value;
  bool fits = true;
};

/// A comma belongs to the number between a group of at most three digits and exactly three more.
std::size_t read_whole_part(std::string_view text, Magnitude& m) {
  std::size_t at = 0, group = 0;
  bool separated = false;
  while (at < text.size()) {
    if (is_digit(text[at])) {
      m.fits = m.fits && push_digit(m.value.numerator, text[at] - '0');
      ++group, ++at;
      continue;
    }
    const bool three = digit_at(text, at + 1) && digit_at(text, at + 2) && digit_at(text, at + 3) && !digit_at(text, at + 4);
    if (text[at] != ',' || !three || group == 0 || group > 3 || (separated && group != 3)) break;
    separated = true;
    group = 0, ++at;
  }
  return at;
}

void read_exponent(std::string_view text, std::size_t& at, Magnitude& m) {
  if (at >= text.size() || (text[at] != 'e' && text[at] != 'E')) return;
  std::size_t next = at + 1;
  const bool negative = next < text.size() && text[next] == '-';
  if (negative || (next < text.size() && text[next] == '+')) ++next;
  if (!digit_at(text, next)) return;
  int exponent = 0;
  for (; digit_at(text, next); ++next) exponent = exponent > kExponentMax ? exponent : exponent * 10 + (text[next] - '0');
  if (next < text.size() && is_letter(text[next])) return;
  at = next;
  m.fits = m.fits && exponent <= kExponentMax;
  for (int i = 0; m.fits && i < exponent; ++i) m.fits = multiply(negative ? m.value.denominator : m.value.numerator, 10);
}

Magnitude read_magnitude(std::string_view text) {
  Magnitude m;
  std::size_t at = read_whole_part(text, m);
  if (at == 0 && !(text.size() > 1 && text[0] == '.' && is_digit(text[1]))) return m;
  if (at < text.size() && text[at] == '.' && digit_at(text, at + 1)) {
    for (++at; digit_at(text, at); ++at)
      m.fits = m.fits && push_digit(m.value.numerator, text[at] - '0') && multiply(m.value.denominator, 10);
  }
  read_exponent(text, at, m);
  m.length = at;
  if (m.fits) m.value = reduced(m.value.numerator, m.value.denominator);
  return m;
}

/// A magnitude, or two with a fraction bar between them.
Magnitude read_fraction(std::string_view text) {
  Magnitude m = read_magnitude(text);
  if (m.length == 0 || m.length + 1 >= text.size() || text[m.length] != '/') return m;
  const Magnitude below = read_magnitude(text.substr(m.length + 1));
  if (below.length == 0 || (below.fits && below.value.numerator == 0)) return m;
  m.length += 1 + below.length;
  m.fits = m.fits && below.fits && multiply(m.value.numerator, below.value.denominator) &&
           multiply(m.value.denominator, below.value.numerator);
  if (m.fits) m.value = reduced(m.value.numerator, m.value.denominator);
  return m;
}

bool drop_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool drop_currency(std::string_view& text) {
  for (std::string_view sign : kCurrency)
    if (drop_prefix(text, sign)) return true;
  return false;
}

/// Where the currency sign and the sign in front of a number at `at` begin.
std::size_t signed_start(std::string_view text, std::size_t at) {
  for (std::string_view sign : kCurrency)
    if (text.substr(0, at).ends_with(sign)) {
      at -= sign.size();
      break;
    }
  const std::string_view before = text.substr(0, at);
  const std::size_t minus = before.ends_with('-') ? 1 : before.ends_with(kMinusSign) ? kMinusSign.size() : 0;
  if (minus == 0) return at;
  const std::string_view left = before.substr(0, at - minus);
  const bool is_operator = !left.empty() && (is_digit(left.back()) || is_letter(left.back()) || left.back() == ')');
  return is_operator ? at : at - minus;
}

} // namespace

double to_double(const Rational& number) { return static_cast<double>(number.numerator) / static_cast<double>(number.denominator); }

std::optional<Rational> parse_number(std::string_view text) {
  text = trim(text);
  bool negative = false;
  const auto drop_sign = [&] {
    if (drop_prefix(text, "-") || drop_prefix(text, kMinusSign)) return negative = true;
    return drop_prefix(text, "+");
  };
  const bool has_sign = drop_sign();
  const bool has_currency = drop_currency(text);
  if (!has_sign && has_currency) drop_sign();
  Magnitude m = read_fraction(text);
  if (m.length == 0 || !m.fits) return std::nullopt;
  text = trim(text.substr(m.length));
  if (!drop_prefix(text, "\\%") && !drop_prefix(text, "%") && !has_currency) drop_currency(text);
  if (!text.empty()) return std::nullopt;
  if (negative) m.value.numerator = -m.value.numerator;
  return m.value;
}

std::optional<std::string_view> find_number(std::string_view text, bool last) {
  std::optional<std::string_view> found;
  for (std::size_t at = 0; at < text.size();) {
    const bool starts = is_digit(text[at]) || (text[at] == '.' && digit_at(text, at + 1));
    if (!starts) {
      ++at;
      continue;
    }
    const std::size_t length = read_fraction(text.substr(at)).length;
    const std::size_t start = signed_start(text, at);
    found = text.substr(start, at + length - start);
    if (!last) return found;
    at += length;
  }
  return found;
}

std::optional<std::string_view> after_marker(std::string_view text, std::string_view marker) {
  const std::size_t at = text.rfind(marker);
  if (marker.empty() || at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(at + marker.size());
  const std::string_view line = trim(rest.substr(0, rest.find('\n')));
  if (line.empty()) return std::nullopt;
  return line;
}

} // namespace troupe::rl
