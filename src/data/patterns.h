/// @file
/// The named ways to split text: what GGUF files and rank files mention by name only. Add a family here.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/tokenizer_spec.h"

namespace troupe::data {

/// A control token that comes with a rank file, at the id after the one before.
struct RankFileToken {
  std::string name;
  bool special = true;
};

/// Everything a bare vocabulary leaves open.
struct NamedPattern {
  bool nfc = false;
  bool ignore_merges = false;
  std::vector<PreTokenizerStep> pre_tokenizers;
  std::vector<RankFileToken> added; ///< For rank files only; ids follow the ranks.
  std::string_view bos, eos, pad;   ///< Names among `added`, or empty.
  bool adds_bos = false;
};

/// Looks a name up: "gpt-2", "qwen2", "qwen3_5", "llama3", "o200k", "smollm", "deepseek-v3", ... and the names GGUF
/// files use. Errors: kInvalidArgument listing the known names.
[[nodiscard]] Result<NamedPattern> find_pattern(std::string_view name);

/// The pattern that a rank file's name suggests, or "".
[[nodiscard]] std::string_view pattern_of_file(std::string_view file_name);

} // namespace troupe::data
