// tiktoken-style rank files, and OpenAI's GPT-2 pair of files.
#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "base/file.h"
#include "data/bpe.h"
#include "data/byte_spelling.h"
#include "data/json.h"
#include "data/patterns.h"
#include "data/tokenizer_readers.h"
#include "data/utf8.h"

namespace troupe::data {
namespace {

using IdBySpelling = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

// Nothing when a character is foreign or the length is wrong.
std::optional<std::string> decode_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    std::uint32_t value = 0;
    if (c >= 'A' && c <= 'Z')
      value = static_cast<std::uint32_t>(c - 'A');
    else if (c >= 'a' && c <= 'z')
      value = static_cast<std::uint32_t>(c - 'a') + 26;
    else if (c >= '0' && c <= '9')
      value = static_cast<std::uint32_t>(c - '0') + 52;
    else if (c == '+')
      value = 62;
    else if (c == '/')
      value = 63;
    else
      return std::nullopt;
    bits = bits << 6 | value;
    count += 6;
    if (count >= 8) {
      count -= 8;
      out.push_back(static_cast<char>(bits >> count & 0xFF));
    }
  }
  if (count >= 6 || out.empty()) return std::nullopt;
  return out;
}

// The tokens of a rank file by rank.
Result<std::vector<std::string>> read_ranks(std::string_view text, const std::string& file) {
  std::vector<std::string> tokens;
  std::int64_t line_number = 0;
  const std::int64_t limit = id_limit(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = file + ":" + std::to_string(line_number);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) return fail(ErrorCode::kCorrupt, "is not 'base64 rank'", where);
    auto bytes = decode_base64(line.substr(0, space));
    if (!bytes)
      return fail(ErrorCode::kCorrupt, "'" + replace_ill_formed(line.substr(0, space)) + "' is not base64", where);
    std::int64_t rank = -1;
    const auto [stop, error] = std::from_chars(line.data() + space + 1, line.data() + line.size(), rank);
    if (error != std::errc() || stop != line.data() + line.size() || rank < 0 || rank >= limit)
      return fail(ErrorCode::kCorrupt, "the rank must be an integer in 0.." + std::to_string(limit - 1),
                  where);
    if (static_cast<std::size_t>(rank) >= tokens.size()) tokens.resize(static_cast<std::size_t>(rank) + 1);
    if (!tokens[static_cast<std::size_t>(rank)].empty())
      return fail(ErrorCode::kCorrupt, "the rank " + std::to_string(rank) + " is given twice", where);
    tokens[static_cast<std::size_t>(rank)] = std::move(*bytes);
  }
  if (tokens.empty()) return fail(ErrorCode::kCorrupt, "holds no tokens", file);
  return tokens;
}

// Finds the two parts whose merge makes each token: what the merge loop itself would have before the last step. Tokens
// that no two parts make are only found as whole pieces (ignore_merges).
class MergeFinder {
 public:
  explicit MergeFinder(const std::vector<std::string>& tokens) {
    ranks_.reserve(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (!tokens[i].empty()) ranks_.emplace(tokens[i], static_cast<std::int32_t>(i));
  }

  [[nodiscard]] std::optional<std::pair<std::int32_t, std::int32_t>> parts(std::string_view token) {
    cuts_.resize(token.size() + 1);
    for (std::size_t i = 0; i <= token.size(); ++i) cuts_[i] = i;
    joined_.clear();
    for (std::size_t i = 0; i + 2 < cuts_.size(); ++i) joined_.push_back(rank(token, i));
    while (cuts_.size() > 3) { // more than two parts
      const auto best = std::min_element(joined_.begin(), joined_.end());
      if (best == joined_.end() || *best == kNone) return std::nullopt;
      const auto i = best - joined_.begin();
      cuts_.erase(cuts_.begin() + i + 1);
      joined_.erase(best);
      if (i > 0) joined_[static_cast<std::size_t>(i) - 1] = rank(token, static_cast<std::size_t>(i) - 1);
      if (static_cast<std::size_t>(i) < joined_.size())
        joined_[static_cast<std::size_t>(i)] = rank(token, static_cast<std::size_t>(i));
    }
    const auto left = ranks_.find(token.substr(0, cuts_[1])), right = ranks_.find(token.substr(cuts_[1]));
    if (left == ranks_.end() || right == ranks_.end()) return std::nullopt;
    return std::pair(left->second, right->second);
  }

 private:
  static constexpr std::int32_t kNone = INT32_MAX;
  // Of parts i and i + 1 joined.
  [[nodiscard]] std::int32_t rank(std::string_view token, std::size_t i) const {
    const auto it = ranks_.find(token.substr(cuts_[i], cuts_[i + 2] - cuts_[i]));
    return it == ranks_.end() ? kNone : it->second;
  }
  std::unordered_map<std::string_view, std::int32_t, TextHash, std::equal_to<>> ranks_;
  std::vector<std::size_t> cuts_;
  std::vector<std::int32_t> joined_;
};

std::optional<std::int32_t> added_id(const TokenizerSpec& spec, std::string_view name) {
  for (const auto& token : spec.added)
    if (!name.empty() && token.content == name) return token.id;
  return std::nullopt;
}

} // namespace

Result<TokenizerSpec> read_rank_file(const std::filesystem::path& path, std::string_view pattern) {
  if (pattern.empty()) pattern = pattern_of_file(path.filename().string());
  auto named = find_pattern(pattern);
  if (!named && pattern.empty())
    return fail(ErrorCode::kInvalidArgument,
                "a rank file does not say how text is split: set the pattern (" +
                    named.error().message.substr(named.error().message.find("known are")) + ")",
                path.string());
  if (!named) return fail(named.error().code, named.error().message, path.string());
  TROUPE_TRY(const auto text, read_file(path));
  TROUPE_TRY(const auto tokens, read_ranks(text, path.string()));

  TokenizerSpec spec;
  if (named->nfc) spec.normalizers.push_back({});
  spec.pre_tokenizers = std::move(named->pre_tokenizers);
  spec.decoders.push_back({});
  spec.ignore_merges = true; // as tiktoken looks whole pieces up first
  MergeFinder finder(tokens);
  spec.vocab.reserve(tokens.size());
  for (const auto& bytes : tokens) {
    spec.vocab.push_back(spell_bytes(bytes));
    if (bytes.size() < 2) continue;
    if (const auto parts = finder.parts(bytes)) spec.merges.push_back(*parts);
  }
  auto next = static_cast<std::int32_t>(tokens.size());
  for (auto& token : named->added) {
    AddedToken added;
    added.id = next++;
    added.content = std::move(token.name);
    added.special = token.special;
    spec.added.push_back(std::move(added));
  }
  spec.bos = added_id(spec, named->bos);
  spec.eos = added_id(spec, named->eos);
  spec.pad = added_id(spec, named->pad);
  if (named->adds_bos && spec.bos) spec.prefix = {*spec.bos};
  return spec;
}

Result<TokenizerSpec> read_gpt2_files(const std::filesystem::path& vocabulary, const std::filesystem::path& merges) {
  TROUPE_TRY(const auto json_text, read_file(vocabulary));
  TROUPE_TRY(const auto json, parse_json(json_text, vocabulary.string()));
  const JsonView root(json, vocabulary.string());
  TROUPE_TRY_STATUS(root.require_object());
  TokenizerSpec spec;
  IdBySpelling ids;
  const std::int64_t id_max = id_limit(json.size()) - 1;
  for (const auto& [spelling, number] : json.items()) {
    if (spelling.empty()) return fail(ErrorCode::kCorrupt, "has an empty token", vocabulary.string());
    const auto id = JsonView(number, vocabulary.string(), "'" + spelling + "'").integer(0, id_max);
    if (!id) return tl::unexpected(id.error());
    if (static_cast<std::size_t>(*id) >= spec.vocab.size()) spec.vocab.resize(static_cast<std::size_t>(*id) + 1);
    auto& slot = spec.vocab[static_cast<std::size_t>(*id)];
    if (!slot.empty())
      return fail(ErrorCode::kCorrupt,
                  "the id " + std::to_string(*id) + " is given to both '" + slot + "' and '" + spelling + "'",
                  vocabulary.string());
    slot = spelling;
    ids.emplace(spelling, static_cast<std::int32_t>(*id));
  }
  TROUPE_TRY(const auto text, read_file(merges));
  std::string_view rest = text;
  std::int64_t line_number = 0;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const std::string where = merges.string() + ":" + std::to_string(line_number);
    const std::size_t space = line.find(' ', 1);
    if (space == std::string_view::npos)
      return fail(ErrorCode::kCorrupt, "must be two tokens with a space between", where);
    const auto left = ids.find(line.substr(0, space)), right = ids.find(line.substr(space + 1));
    if (left == ids.end() || right == ids.end())
      return fail(ErrorCode::kCorrupt, "names a token that is not in the vocabulary", where);
    spec.merges.emplace_back(left->second, right->second);
  }
  TROUPE_TRY(auto named, find_pattern("gpt-2"));
  spec.pre_tokenizers = std::move(named.pre_tokenizers);
  spec.decoders.push_back({});
  if (const auto it = ids.find("<|endoftext|>"); it != ids.end()) {
    spec.added.push_back({it->second, it->first, true});
    spec.bos = spec.eos = spec.pad = it->second;
  }
  return spec;
}

} // namespace troupe::data
