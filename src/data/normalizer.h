/// @file
/// Text to text before splitting: Unicode normal forms (ICU), replacement, prefixes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/regex.h"
#include "data/tokenizer_spec.h"

namespace troupe::data {

class Normalizer {
 public:
  /// Errors: kInvalidArgument for a pattern that does not compile.
  [[nodiscard]] static Result<Normalizer> create(const std::vector<NormalizerStep>& steps);

  [[nodiscard]] bool identity() const { return steps_.empty(); }
  /// The result is `text` itself where nothing changes, else it lies in `buffer`. The text is valid UTF-8.
  [[nodiscard]] std::string_view apply(std::string_view text, std::string& buffer, RegexScratch& scratch) const;

 private:
  struct Step {
    NormalizerStep what;
    std::vector<Regex> regex; // one for kReplace
  };
  std::vector<Step> steps_;
};

/// How many bytes of Unicode white space a text begins, or ends, with.
[[nodiscard]] std::size_t space_prefix(std::string_view text);
[[nodiscard]] std::size_t space_suffix(std::string_view text);

} // namespace troupe::data
