/// @file
/// The file formats a tokenizer can be read from. Each reader only fills a TokenizerSpec;
/// `Tokenizer::load` picks one by the path.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"
#include "data/tokenizer_spec.h"

namespace troupe::data {

inline constexpr std::int64_t kVocabularyMax = 1 << 24; ///< Ids are below this; published vocabularies stay under 2^18.
inline constexpr std::int64_t kHolesMax = 1 << 16; ///< Ids that no token has: a small file cannot claim a huge table.

/// Ids of a vocabulary with that many entries are below this.
[[nodiscard]] constexpr std::int64_t id_limit(std::size_t entries) {
  const auto most = static_cast<std::int64_t>(entries) + kHolesMax;
  return most < kVocabularyMax ? most : kVocabularyMax;
}

/// Hugging Face `tokenizer.json`; begin, end and padding tokens come from the `tokenizer_config.json` beside it, if
/// any. Errors: kCorrupt naming the place; kInvalidArgument naming an unsupported component.
[[nodiscard]] Result<TokenizerSpec> read_tokenizer_json(const std::filesystem::path& path);

/// The same from text, without a neighbour. `where` is for messages.
[[nodiscard]] Result<TokenizerSpec> parse_tokenizer_json(std::string_view text, const std::string& where);

/// OpenAI's GPT-2 files: a vocabulary (encoder.json or vocab.json) and a merge list (vocab.bpe or merges.txt).
[[nodiscard]] Result<TokenizerSpec> read_gpt2_files(const std::filesystem::path& vocabulary,
                                                    const std::filesystem::path& merges);

/// A tiktoken-style rank file: one base64 token and its rank per line. `pattern` names what the file leaves open;
/// empty: guessed from the file's name.
[[nodiscard]] Result<TokenizerSpec> read_rank_file(const std::filesystem::path& path, std::string_view pattern);

/// The vocabulary inside a GGUF file.
[[nodiscard]] Result<TokenizerSpec> read_gguf_vocabulary(const std::filesystem::path& path);

} // namespace troupe::data
