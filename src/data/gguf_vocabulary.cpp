// The vocabulary inside a GGUF file. Only the byte-level kind ("gpt2"); the splitting pattern is a name.
#include <unordered_map>

#include "data/bpe.h"
#include "data/patterns.h"
#include "data/tokenizer_readers.h"
#include "data/utf8.h"
#include "formats/gguf.h"

namespace troupe::data {
namespace {

enum TokenType : std::int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

Result<std::optional<std::int32_t>> token_key(const formats::GgufFile& gguf, std::string_view key,
                                              std::size_t vocab_size) {
  const auto id = gguf.integer(key);
  if (!id) return std::nullopt;
  if (*id < 0 || *id >= static_cast<std::int64_t>(vocab_size))
    return fail(
        ErrorCode::kCorrupt,
        std::string(key) + " is " + std::to_string(*id) + ", outside the vocabulary of " + std::to_string(vocab_size),
        gguf.path().string());
  return static_cast<std::int32_t>(*id);
}

Status read_merges(const formats::GgufFile& gguf, TokenizerSpec& spec) {
  std::unordered_map<std::string_view, std::int32_t, TextHash, std::equal_to<>> ids;
  ids.reserve(spec.vocab.size());
  for (std::size_t id = 0; id < spec.vocab.size(); ++id) ids.emplace(spec.vocab[id], static_cast<std::int32_t>(id));
  const auto merges = gguf.strings("tokenizer.ggml.merges");
  spec.merges.reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::string place = "tokenizer.ggml.merges[" + std::to_string(i) + "] ";
    const std::size_t space = merges[i].find(' ', 1);
    if (space == std::string_view::npos)
      return fail(ErrorCode::kCorrupt, place + "must be two tokens with a space between", gguf.path().string());
    const auto left = ids.find(merges[i].substr(0, space)), right = ids.find(merges[i].substr(space + 1));
    if (left == ids.end() || right == ids.end())
      return fail(ErrorCode::kCorrupt,
                  place + "names '" + replace_ill_formed(merges[i].substr(0, space)) + "' and '" +
                      replace_ill_formed(merges[i].substr(space + 1)) + "', not both in the vocabulary",
                  gguf.path().string());
    spec.merges.emplace_back(left->second, right->second);
  }
  return {};
}

} // namespace

Result<TokenizerSpec> read_gguf_vocabulary(const std::filesystem::path& path) {
  TROUPE_TRY(const auto gguf, formats::GgufFile::open(path));
  const std::string where = path.string();
  const auto model = gguf.string("tokenizer.ggml.model");
  if (!model) return fail(ErrorCode::kCorrupt, "holds no vocabulary (tokenizer.ggml.model is missing)", where);
  if (*model != "gpt2")
    return fail(ErrorCode::kInvalidArgument,
                "has a vocabulary of kind '" + std::string(*model) + "'; supported is gpt2 (byte-level BPE)", where);
  const auto tokens = gguf.strings("tokenizer.ggml.tokens");
  if (tokens.empty()) return fail(ErrorCode::kCorrupt, "tokenizer.ggml.tokens is missing or empty", where);
  if (tokens.size() > static_cast<std::size_t>(kVocabularyMax))
    return fail(ErrorCode::kCorrupt, "has more than 2^24 tokens", where);
  const auto types = gguf.integers("tokenizer.ggml.token_type");
  if (!types.empty() && types.size() != tokens.size())
    return fail(ErrorCode::kCorrupt,
                "has " + std::to_string(types.size()) + " token types for " + std::to_string(tokens.size()) + " tokens",
                where);
  auto named = find_pattern(gguf.string("tokenizer.ggml.pre").value_or("default"));
  if (!named) return fail(named.error().code, "tokenizer.ggml.pre: " + named.error().message, where);

  TokenizerSpec spec;
  if (named->nfc) spec.normalizers.push_back({});
  spec.pre_tokenizers = std::move(named->pre_tokenizers);
  spec.decoders.push_back({});
  spec.ignore_merges = named->ignore_merges;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty() || !is_valid_utf8(tokens[id]))
      return fail(
          ErrorCode::kCorrupt,
          "tokenizer.ggml.tokens[" + std::to_string(id) + "] is " + (tokens[id].empty() ? "empty" : "not UTF-8"),
          where);
    spec.vocab.emplace_back(tokens[id]);
    const std::int64_t type = types.empty() ? kNormal : types[id];
    if (type == kControl || type == kUserDefined || type == kUnknown)
      spec.added.push_back({static_cast<std::int32_t>(id), std::string(tokens[id]), type != kUserDefined});
  }
  TROUPE_TRY_STATUS(read_merges(gguf, spec));
  TROUPE_TRY(spec.bos, token_key(gguf, "tokenizer.ggml.bos_token_id", tokens.size()));
  TROUPE_TRY(spec.eos, token_key(gguf, "tokenizer.ggml.eos_token_id", tokens.size()));
  TROUPE_TRY(spec.pad, token_key(gguf, "tokenizer.ggml.padding_token_id", tokens.size()));
  if (gguf.boolean("tokenizer.ggml.add_bos_token").value_or(named->adds_bos) && spec.bos) spec.prefix = {*spec.bos};
  if (gguf.boolean("tokenizer.ggml.add_eos_token").value_or(false) && spec.eos) spec.suffix = {*spec.eos};
  return spec;
}

} // namespace troupe::data
