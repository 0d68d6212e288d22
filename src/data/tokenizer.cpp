#include "data/tokenizer.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "base/check.h"
#include "data/added_tokens.h"
#include "data/bpe.h"
#include "data/byte_spelling.h"
#include "data/normalizer.h"
#include "data/pre_tokenizer.h"
#include "data/tokenizer_readers.h"
#include "data/utf8.h"

namespace troupe::data {
namespace {

namespace fs = std::filesystem;

struct EncodeScratch {
  PreTokenizer::Scratch pre;
  BpeScratch bpe;
  std::string normalized;
};

// "<0x0A>" -> 10.
std::optional<char> byte_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : text.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

// What an ordinary token stands for.
std::string token_bytes(const TokenizerSpec& spec, const std::string& spelling) {
  if (spec.byte_level()) return unspell_bytes(spelling).value_or(spelling);
  std::string text = spelling;
  for (const auto& step : spec.decoders) {
    if (step.kind == DecoderStep::Kind::kByteFallback)
      if (const auto byte = byte_token(text)) text.assign(1, *byte);
    if (step.kind != DecoderStep::Kind::kReplace) continue;
    for (std::size_t at = 0; (at = text.find(step.pattern, at)) != std::string::npos; at += step.content.size())
      text.replace(at, step.pattern.size(), step.content);
  }
  return text;
}

Status check_spec(const TokenizerSpec& spec) {
  const auto size = static_cast<std::int32_t>(spec.vocab.size());
  for (const auto& [left, right] : spec.merges)
    if (left < 0 || right < 0 || left >= size || right >= size || spec.vocab[static_cast<std::size_t>(left)].empty() ||
        spec.vocab[static_cast<std::size_t>(right)].empty())
      return fail(ErrorCode::kCorrupt, "a merge names an id without a token");
  bool decodes_bytes = false;
  for (const auto& step : spec.decoders) decodes_bytes |= step.kind == DecoderStep::Kind::kByteLevel;
  if (spec.decoders.empty())
    return fail(ErrorCode::kInvalidArgument, "decoder is missing, so that ids have no text; use ByteLevel or Fuse");
  if (decodes_bytes != spec.byte_level())
    return fail(ErrorCode::kInvalidArgument, "pre_tokenizer and decoder must both have ByteLevel, or neither");
  return {};
}

} // namespace

struct Tokenizer::Compiled {
  TokenizerSpec spec;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  AddedTokenMatcher raw_matcher, normalized_matcher;
  std::vector<std::string> bytes; // by id
  std::vector<std::uint8_t> special, added;
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> ids;
  std::size_t strip_left = 0; // spaces the decoder takes from the start of a text

  // Scratch memory (and with it the piece cache) is kept from call to call, one per thread that
  // encodes at the same time.
  mutable std::mutex scratch_mutex;
  mutable std::vector<std::unique_ptr<EncodeScratch>> scratch_free;

  [[nodiscard]] std::unique_ptr<EncodeScratch> take_scratch() const {
    const std::lock_guard lock(scratch_mutex);
    if (scratch_free.empty()) return std::make_unique<EncodeScratch>();
    auto scratch = std::move(scratch_free.back());
    scratch_free.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<EncodeScratch> scratch) const {
    const std::lock_guard lock(scratch_mutex);
    scratch_free.push_back(std::move(scratch));
  }

  Status add_tokens();
  void encode_pieces(std::string_view text, std::vector<std::int32_t>& out, EncodeScratch& scratch) const {
    for (const auto piece : pre_tokenizer.split(text, scratch.pre)) bpe.encode(piece, out, scratch.bpe);
  }
  // Text between the tokens that are looked for in raw text.
  void encode_raw(std::string_view text, bool find_added, std::vector<std::int32_t>& out, EncodeScratch& scratch) const;
};

Status Tokenizer::Compiled::add_tokens() {
  std::string buffer;
  RegexScratch regex;
  const std::int64_t limit = id_limit(spec.vocab.size() + spec.added.size());
  for (const auto& token : spec.added) {
    const auto id = static_cast<std::size_t>(token.id);
    if (token.id < 0 || token.id >= limit)
      return fail(ErrorCode::kCorrupt, "added token '" + token.content + "' has the id " + std::to_string(token.id));
    if (token.content.empty())
      return fail(ErrorCode::kCorrupt, "the added token with id " + std::to_string(token.id) + " is empty");
    if (const auto it = ids.find(token.content); it != ids.end() && it->second != token.id)
      return fail(ErrorCode::kCorrupt, "added token '" + token.content + "' has two ids, " +
                                           std::to_string(it->second) + " and " + std::to_string(token.id));
    if (id < bytes.size() && !bytes[id].empty() && (added[id] || spec.vocab[id] != token.content))
      return fail(ErrorCode::kCorrupt, "the id " + std::to_string(token.id) + " is given to both '" +
                                           (added[id] ? bytes[id] : spec.vocab[id]) + "' and the added token '" +
                                           token.content + "'");
    if (id >= bytes.size()) bytes.resize(id + 1), special.resize(id + 1), added.resize(id + 1);
    bytes[id] = token.content;
    special[id] = token.special;
    added[id] = 1;
    ids.emplace(token.content, token.id);
    if (token.normalized)
      normalized_matcher.insert(normalizer.apply(token.content, buffer, regex), token);
    else
      raw_matcher.insert(token.content, token);
  }
  for (const auto* list : {&spec.prefix, &spec.suffix})
    for (const auto id : *list)
      if (static_cast<std::size_t>(id) >= bytes.size())
        return fail(ErrorCode::kCorrupt,
                    "post_processor uses the id " + std::to_string(id) + ", which is not in the vocabulary");
  return {};
}

void Tokenizer::Compiled::encode_raw(std::string_view text, bool find_added, std::vector<std::int32_t>& out,
                                     EncodeScratch& scratch) const {
  if (text.empty()) return;
  text = normalizer.apply(text, scratch.normalized, scratch.pre.regex);
  std::size_t at = 0;
  if (find_added && !normalized_matcher.empty()) {
    while (const auto match = normalized_matcher.find(text, at)) {
      encode_pieces(text.substr(at, match->begin - at), out, scratch);
      out.push_back(match->id);
      at = match->end;
    }
  }
  encode_pieces(text.substr(at), out, scratch);
}

Tokenizer::Tokenizer(std::unique_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

const TokenizerSpec& Tokenizer::spec() const { return compiled_->spec; }

Result<Tokenizer> Tokenizer::load(const fs::path& path, std::string_view pattern) {
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  if (!is_folder && !fs::exists(path, error))
    return fail(ErrorCode::kNotFound, "there is no tokenizer here: no such file or folder", path.string());
  const auto read = [&]() -> Result<TokenizerSpec> {
    if (is_folder) {
      if (fs::exists(path / "tokenizer.json")) return read_tokenizer_json(path / "tokenizer.json");
      if (fs::exists(path / "encoder.json") && fs::exists(path / "vocab.bpe"))
        return read_gpt2_files(path / "encoder.json", path / "vocab.bpe");
      if (fs::exists(path / "vocab.json") && fs::exists(path / "merges.txt"))
        return read_gpt2_files(path / "vocab.json", path / "merges.txt");
      return fail(
          ErrorCode::kNotFound,
          "the folder holds neither tokenizer.json, nor encoder.json and vocab.bpe, nor vocab.json and merges.txt",
          path.string());
    }
    if (path.extension() == ".gguf") return read_gguf_vocabulary(path);
    if (path.extension() == ".tiktoken") return read_rank_file(path, pattern);
    if (path.extension() == ".json") return read_tokenizer_json(path);
    return fail(ErrorCode::kInvalidArgument, "a tokenizer is a folder, a .json, a .gguf or a .tiktoken file",
                path.string());
  };
  TROUPE_TRY(auto spec, read());
  return create(std::move(spec), path.string());
}

Result<Tokenizer> Tokenizer::create(TokenizerSpec spec, std::string where) {
  auto compiled = std::make_unique<Compiled>();
  const auto compile = [&]() -> Status {
    TROUPE_TRY_STATUS(check_spec(spec));
    auto& c = *compiled;
    c.bytes.reserve(spec.vocab.size());
    c.ids.reserve(spec.vocab.size());
    for (std::size_t id = 0; id < spec.vocab.size(); ++id) {
      c.bytes.push_back(spec.vocab[id].empty() ? std::string() : token_bytes(spec, spec.vocab[id]));
      if (!spec.vocab[id].empty()) c.ids.emplace(spec.vocab[id], static_cast<std::int32_t>(id));
    }
    c.special.resize(c.bytes.size());
    c.added.resize(c.bytes.size());
    TROUPE_TRY(c.normalizer, Normalizer::create(spec.normalizers));
    TROUPE_TRY(c.pre_tokenizer, PreTokenizer::create(spec.pre_tokenizers));
    TROUPE_TRY(c.bpe, Bpe::create(spec, c.bytes));
    for (const auto& step : spec.decoders)
      if (step.kind == DecoderStep::Kind::kStrip) c.strip_left = static_cast<std::size_t>(step.strip_start);
    c.spec = std::move(spec);
    return c.add_tokens();
  };
  if (auto status = compile(); !status) {
    Error error = std::move(status).error();
    if (error.where.empty()) error.where = std::move(where);
    return tl::unexpected(std::move(error));
  }
  return Tokenizer(std::move(compiled));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, Special mode) const {
  const Compiled& c = *compiled_;
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = replace_ill_formed(text);
    text = repaired;
  }
  std::vector<std::int32_t> out;
  out.reserve(text.size() / 3 + 4);
  auto scratch = c.take_scratch();
  const bool find_added = mode == Special::kSpecial;
  std::size_t at = 0;
  if (find_added && !c.raw_matcher.empty()) {
    while (const auto match = c.raw_matcher.find(text, at)) {
      c.encode_raw(text.substr(at, match->begin - at), find_added, out, *scratch);
      out.push_back(match->id);
      at = match->end;
    }
  }
  c.encode_raw(text.substr(at), find_added, out, *scratch);
  c.give_back(std::move(scratch));
  return out;
}

std::vector<std::int32_t> Tokenizer::encode(std::span<const TextPart> parts) const {
  const Compiled& c = *compiled_;
  std::string text;
  std::vector<std::pair<std::size_t, std::size_t>> inputs; // [begin, end), ascending
  for (const TextPart& part : parts) {
    const std::size_t begin = text.size();
    text += is_valid_utf8(part.text) ? part.text : replace_ill_formed(part.text);
    if (part.from_input && text.size() > begin) inputs.emplace_back(begin, text.size());
  }
  const auto touches_input = [&](std::size_t begin, std::size_t end) {
    const auto it = std::upper_bound(inputs.begin(), inputs.end(), begin, [](std::size_t at, const auto& range) { return at < range.second; });
    return it != inputs.end() && it->first < end;
  };
  std::vector<std::int32_t> out;
  auto scratch = c.take_scratch();
  const auto raw = [&](std::size_t begin, std::size_t end) {
    c.encode_raw(std::string_view(text).substr(begin, end - begin), !touches_input(begin, end), out, *scratch);
  };
  std::size_t at = 0;
  for (std::size_t from = 0; !c.raw_matcher.empty();) {
    const auto match = c.raw_matcher.find(text, from);
    if (!match) break;
    if (touches_input(match->begin, match->end)) { // the next one may begin inside
      from = match->begin + 1;
      continue;
    }
    raw(at, match->begin);
    out.push_back(match->id);
    at = from = match->end;
  }
  raw(at, text.size());
  c.give_back(std::move(scratch));
  return out;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes_of_all;
  for (const auto id : ids)
    if (!skip_special || !is_special(id)) bytes_of_all += bytes(id);
  std::string_view text = bytes_of_all;
  for (std::size_t i = 0; i < compiled_->strip_left && text.starts_with(' '); ++i) text.remove_prefix(1);
  return is_valid_utf8(text) ? std::string(text) : replace_ill_formed(text);
}

std::vector<std::int32_t> Tokenizer::with_template(std::vector<std::int32_t> ids) const {
  const auto& prefix = spec().prefix;
  const auto& suffix = spec().suffix;
  const bool begun = ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
  if (!begun) ids.insert(ids.begin(), prefix.begin(), prefix.end());
  const bool ended = ids.size() >= suffix.size() && std::equal(suffix.rbegin(), suffix.rend(), ids.rbegin());
  if (!ended) ids.insert(ids.end(), suffix.begin(), suffix.end());
  return ids;
}

std::string_view Tokenizer::bytes(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= compiled_->bytes.size()) return {};
  return compiled_->bytes[static_cast<std::size_t>(id)];
}

int Tokenizer::vocab_size() const { return static_cast<int>(compiled_->bytes.size()); }

std::optional<std::int32_t> Tokenizer::token_id(std::string_view name) const {
  const auto it = compiled_->ids.find(name);
  if (it == compiled_->ids.end()) return std::nullopt;
  return it->second;
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && static_cast<std::size_t>(id) < compiled_->special.size() &&
         compiled_->special[static_cast<std::size_t>(id)];
}

bool Tokenizer::is_added(std::int32_t id) const {
  return id >= 0 && static_cast<std::size_t>(id) < compiled_->added.size() &&
         compiled_->added[static_cast<std::size_t>(id)];
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special), strip_left_(tokenizer.compiled_->strip_left) {}

std::string StreamDecoder::push(std::int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->bytes(id);
  std::size_t stripped = 0;
  while (strip_left_ > 0 && stripped < pending_.size()) {
    if (pending_[stripped] != ' ')
      strip_left_ = 0;
    else
      ++stripped, --strip_left_;
  }
  const std::size_t end = pending_.size() - incomplete_tail(pending_);
  if (end <= stripped) {
    pending_.erase(0, stripped);
    return {};
  }
  std::string text = replace_ill_formed(std::string_view(pending_).substr(stripped, end - stripped));
  pending_.erase(0, end);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = replace_ill_formed(pending_);
  pending_.clear();
  strip_left_ = tokenizer_->compiled_->strip_left;
  return text;
}

} // namespace troupe::data
