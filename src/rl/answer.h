/// @file
/// Finding and comparing final answers: exact numbers, text after a marker, the last box of a LaTeX reply.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace troupe::rl {

/// An exact number: numerator / denominator in lowest terms, denominator > 0.
struct Rational {
  __extension__ typedef __int128 Int;
  Int numerator = 0;
  Int denominator = 1;
  friend bool operator==(const Rational&, const Rational&) = default;
};

[[nodiscard]] double to_double(const Rational& number);

/// The whole text as a number: sign, currency sign, thousands separators, decimal point, exponent, one fraction bar, percent sign.
/// "$1,234.00" = 1234, "-1/2", "1e3". Nothing when something is left over or it does not fit 127 bits.
[[nodiscard]] std::optional<Rational> parse_number(std::string_view text);

/// The first or the last number inside a text; nothing when there is none. A hyphen after a letter, digit or ")" is not a sign.
[[nodiscard]] std::optional<std::string_view> find_number(std::string_view text, bool last);

/// What follows the last `marker` on the same line, without surrounding blanks; nothing when there is no marker or nothing after it.
[[nodiscard]] std::optional<std::string_view> after_marker(std::string_view text, std::string_view marker);

/// Content of the last \boxed{...} or \fbox{...}, braces balanced, \{ and \} not counted. Nothing when the last box is never closed.
[[nodiscard]] std::optional<std::string_view> last_box(std::string_view text);

/// Whether two LaTeX answers say the same: \text and spacing removed, \frac12 = \frac{1}{2} = 1/2 = 0.5, else equal as text.
[[nodiscard]] bool same_answer(std::string_view a, std::string_view b);

} // namespace troupe::rl
