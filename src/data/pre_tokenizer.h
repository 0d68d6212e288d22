/// @file
/// Text to pieces: patterns applied one after another, each to the pieces that the one before left.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/regex.h"
#include "data/tokenizer_spec.h"

namespace troupe::data {

/// GPT-2's splitting pattern, which ByteLevel with use_regex means.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class PreTokenizer {
 public:
  /// Errors: kInvalidArgument naming the step whose pattern does not compile.
  [[nodiscard]] static Result<PreTokenizer> create(const std::vector<PreTokenizerStep>& steps);

  /// Where pieces are kept while they are made; one per thread.
  struct Scratch {
    RegexScratch regex;
    std::vector<std::string_view> pieces, next;
    std::string prefixed; ///< Text with the prefix spaces put in.
  };
  /// The pieces of a text, valid until the next call with this scratch. The text is valid UTF-8.
  [[nodiscard]] const std::vector<std::string_view>& split(std::string_view text, Scratch& scratch) const;

 private:
  struct Step {
    SplitBehavior behavior;
    bool invert, add_prefix_space, has_pattern;
    std::vector<Regex> regex; // one if has_pattern
  };
  std::vector<Step> steps_;
};

} // namespace troupe::data
