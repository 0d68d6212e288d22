// Boxes and LaTeX answers.
#include <array>
#include <utility>

#include "rl/answer.h"

namespace troupe::rl {
namespace {

constexpr std::size_t kAnswerBytesMax = 4096; // longer "answers" are compared as they stand

/// Index of the brace that closes the one at `open`, or npos. \{ and \} do not count.
std::size_t closing_brace(std::string_view text, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return i;
    }
  }
  return std::string_view::npos;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
}

/// \text{13} -> 13, for every command that only changes how its argument looks.
void unwrap(std::string& text) {
  constexpr std::array<std::string_view, 8> kCommands = {"\\text{",   "\\textbf{", "\\textit{", "\\mathrm{",
                                                         "\\mathbf{", "\\mbox{",   "\\boxed{",  "\\mathit{"};
  for (std::string_view command : kCommands)
    for (std::size_t at = text.find(command); at != std::string::npos; at = text.find(command, at)) {
      const std::size_t open = at + command.size() - 1;
      const std::size_t close = closing_brace(text, open);
      if (close == std::string::npos) return;
      text.erase(close, 1);
      text.erase(at, command.size());
    }
}

/// One argument of \frac at `at`: a braced group or a single character. Moves `at` behind it.
std::string_view argument(std::string_view text, std::size_t& at) {
  if (at >= text.size()) return {};
  if (text[at] != '{') return text.substr(at++, 1);
  const std::size_t close = closing_brace(text, at);
  if (close == std::string_view::npos) return {};
  const std::string_view inside = text.substr(at + 1, close - at - 1);
  at = close + 1;
  return inside;
}

constexpr std::string_view kFrac = "\\frac";

/// \frac12, \frac{1}2 -> \frac{1}{2}
void brace_fractions(std::string& text) {
  for (std::size_t at = text.find(kFrac); at != std::string::npos; at = text.find(kFrac, at + kFrac.size())) {
    std::size_t end = at + kFrac.size();
    const std::string above(argument(text, end));
    const std::string below(argument(text, end));
    if (above.empty() || below.empty()) continue;
    text.replace(at, end - at, std::string(kFrac) + "{" + above + "}{" + below + "}");
  }
}

std::string normalised(std::string_view answer) {
  std::string text(answer);
  if (text.size() > kAnswerBytesMax) return text;
  for (std::string_view gone : {"\\left", "\\right", "\\displaystyle", "\\,", "\\;", "\\:", "\\!", "\\ ", "\\(", "\\)", "\\[", "\\]", "\\$",
                                "\\%", "$", "%", "~", "^{\\circ}", "^\\circ"})
    replace_all(text, gone, "");
  replace_all(text, "{,}", ",");
  for (std::string_view frac : {"\\dfrac", "\\tfrac", "\\cfrac"}) replace_all(text, frac, kFrac);
  unwrap(text);
  for (std::string_view blank : {" ", "\t", "\n", "\r"}) replace_all(text, blank, "");
  brace_fractions(text);
  while (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

std::optional<Rational> number_of(std::string_view text) {
  if (const auto plain = parse_number(text)) return plain;
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  if (!text.starts_with(kFrac)) return std::nullopt;
  std::size_t at = kFrac.size();
  const auto above = parse_number(argument(text, at));
  const auto below = parse_number(argument(text, at));
  if (!above || !below || at != text.size() || below->numerator == 0) return std::nullopt;
  Rational result;
  if (__builtin_mul_overflow(above->numerator, below->denominator, &result.numerator) ||
      __builtin_mul_overflow(above->denominator, below->numerator, &result.denominator))
    return std::nullopt;
  if (result.denominator < 0) result.numerator = -result.numerator, result.denominator = -result.denominator;
  if (negative) result.numerator = -result.numerator;
  return result;
}

/// a/b = c/d, of fractions that need not be reduced.
bool equal(const Rational& a, const Rational& b) {
  Rational::Int left, right;
  return !__builtin_mul_overflow(a.numerator, b.denominator, &left) && !__builtin_mul_overflow(b.numerator, a.denominator, &right) &&
         left == right;
}

} // namespace

std::optional<std::string_view> last_box(std::string_view text) {
  std::size_t best = std::string_view::npos;
  for (std::string_view command : {std::string_view("\\boxed"), std::string_view("\\fbox")}) {
    for (std::size_t at = text.rfind(command); at != std::string_view::npos; at = at > 0 ? text.rfind(command, at - 1) : std::string_view::npos) {
      const std::size_t open = text.find_first_not_of(" \t", at + command.size());
      if (open == std::string_view::npos || text[open] != '{') continue;
      if (best == std::string_view::npos || open > best) best = open;
      break;
    }
  }
  if (best == std::string_view::npos) return std::nullopt;
  const std::size_t close = closing_brace(text, best);
  if (close == std::string_view::npos) return std::nullopt;
  return text.substr(best + 1, close - best - 1);
}

bool same_answer(std::string_view a, std::string_view b) {
  const std::string left = normalised(a), right = normalised(b);
  if (left == right) return true;
  const auto x = number_of(left), y = number_of(right);
  return x && y && equal(*x, *y);
}

} // namespace troupe::rl
