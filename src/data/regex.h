/// @file
/// The regular expressions of tokenizers, on PCRE2 with Unicode classes. `\s` is Unicode White_Space. What PCRE2 and
/// Oniguruma (which Hugging Face uses) read differently is refused, never approximated.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace troupe::data {

/// Working memory of matching; one per thread.
class RegexScratch {
 public:
  RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;
  RegexScratch& operator=(RegexScratch&&) noexcept;
  ~RegexScratch();

 private:
  friend class Regex;
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

/// A compiled pattern; immutable, may be shared by threads.
class Regex {
 public:
  /// `is_regex` false: the pattern is literal text. Errors: kInvalidArgument with the offset and the reason.
  [[nodiscard]] static Result<Regex> compile(std::string_view pattern, bool is_regex = true);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  struct Match {
    std::size_t begin, end;
  };
  /// The leftmost match that is not empty, at or after `start`. The subject is valid UTF-8. When a pattern exhausts
  /// its limits (a hostile one) there is no match, and one line in the log says so.
  [[nodiscard]] std::optional<Match> find(std::string_view subject, std::size_t start, RegexScratch& scratch) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

} // namespace troupe::data
