/// @file
/// A tokenizer as data: the parts of a `tokenizer.json` that troupe understands, whatever file they were read from.
/// Readers fill it, `Tokenizer::create` compiles it, `Tokenizer::save` writes it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::data {

/// A token that is cut out of the text before anything else happens.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;     ///< Left out by decode(skip_special).
  bool normalized = false;  ///< Looked for in the normalised text instead of the raw one.
  bool lstrip = false;      ///< Swallows white space to its left.
  bool rstrip = false;      ///< Swallows white space to its right.
  bool single_word = false; ///< Only where no letter, digit or underscore touches it.
};

/// Text to text.
struct NormalizerStep {
  enum class Kind : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd, kLowercase, kReplace, kPrepend, kStrip };
  Kind kind = Kind::kNfc;
  std::string pattern;   ///< kReplace.
  bool is_regex = false; ///< kReplace.
  std::string content;   ///< kReplace, kPrepend.
  bool strip_left = false, strip_right = false;
};

/// What becomes of the text between and at the matches of a pattern.
enum class SplitBehavior : std::uint8_t { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// Text to pieces; merges never cross pieces.
struct PreTokenizerStep {
  enum class Kind : std::uint8_t { kSplit, kByteLevel, kDigits };
  Kind kind = Kind::kSplit;
  std::string pattern; ///< kSplit.
  bool is_regex = true;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  bool add_prefix_space = false; ///< kByteLevel.
  bool use_regex = false;        ///< kByteLevel: splits by GPT-2's pattern.
  bool individual_digits = false;
};

/// Tokens to text.
struct DecoderStep {
  enum class Kind : std::uint8_t { kByteLevel, kByteFallback, kFuse, kReplace, kStrip };
  Kind kind = Kind::kByteLevel;
  std::string pattern, content; ///< kReplace (literal); kStrip: `content` is the character.
  int strip_start = 0;          ///< kStrip, at the start of the whole text.
};

/// The whole tokenizer.
struct TokenizerSpec {
  std::vector<NormalizerStep> normalizers;
  std::vector<PreTokenizerStep> pre_tokenizers;
  std::vector<DecoderStep> decoders;
  std::vector<std::string> vocab;                            ///< By id, spelled as in the file; "" is a hole.
  std::vector<std::pair<std::int32_t, std::int32_t>> merges; ///< Earlier ones come first.
  bool ignore_merges = false;                                ///< A piece that is in the vocabulary is one token.
  bool byte_fallback = false;                                ///< Unknown characters become <0xXX> tokens.
  bool fuse_unknown = false;
  std::string unknown; ///< Spelling of the unknown token, or "".
  std::vector<AddedToken> added;
  std::vector<std::int32_t> prefix, suffix; ///< What the post-processor puts round a text.
  std::optional<std::int32_t> bos, eos, pad;

  /// Whether the vocabulary is spelled in GPT-2's printable stand-ins for bytes.
  [[nodiscard]] bool byte_level() const {
    for (const auto& step : pre_tokenizers)
      if (step.kind == PreTokenizerStep::Kind::kByteLevel) return true;
    return false;
  }
};

} // namespace troupe::data
