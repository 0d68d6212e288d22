// Reads Hugging Face tokenizer.json: one function per section, each unknown component is an error that names its place.
#include <unordered_map>

#include "base/file.h"
#include "base/hash.h"
#include "data/bpe.h"
#include "data/json.h"
#include "data/tokenizer_readers.h"

namespace troupe::data {
namespace {

constexpr std::string_view kNormalizers = "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Replace, Prepend, Strip";
constexpr std::string_view kPreTokenizers = "Sequence, Split, ByteLevel, Digits";
constexpr std::string_view kDecoders = "Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip";
constexpr std::string_view kPostProcessors = "Sequence, ByteLevel, TemplateProcessing";

tl::unexpected<Error> unsupported(const JsonView& place, const std::string& type, std::string_view known) {
  return place.error(ErrorCode::kInvalidArgument,
                     "has the unsupported type '" + type + "'; supported are " + std::string(known));
}

Result<std::string> type_of(const JsonView& part) {
  TROUPE_TRY(const auto type, part.at("type"));
  return type.string();
}

// {"String": "..."} or {"Regex": "..."}.
Status read_pattern(const JsonView& part, std::string& pattern, bool& is_regex) {
  TROUPE_TRY(const auto holder, part.at("pattern"));
  const auto literal = holder.find("String"), regex = holder.find("Regex");
  if (literal.has_value() == regex.has_value())
    return holder.error(ErrorCode::kCorrupt, "must hold either 'String' or 'Regex'");
  is_regex = regex.has_value();
  TROUPE_TRY(pattern, (is_regex ? *regex : *literal).string());
  if (pattern.empty()) return holder.error(ErrorCode::kCorrupt, "is empty");
  return {};
}

Status read_normalizer(const JsonView& part, std::vector<NormalizerStep>& out) {
  using Kind = NormalizerStep::Kind;
  static const std::unordered_map<std::string, Kind> simple = {{"NFC", Kind::kNfc},
                                                               {"NFD", Kind::kNfd},
                                                               {"NFKC", Kind::kNfkc},
                                                               {"NFKD", Kind::kNfkd},
                                                               {"Lowercase", Kind::kLowercase}};
  TROUPE_TRY(const auto type, type_of(part));
  NormalizerStep step;
  if (type == "Sequence") {
    TROUPE_TRY(const auto list, part.at("normalizers"));
    TROUPE_TRY(const auto count, list.array_size());
    for (std::size_t i = 0; i < count; ++i) TROUPE_TRY_STATUS(read_normalizer(list.element(i), out));
    return {};
  }
  if (const auto it = simple.find(type); it != simple.end()) {
    step.kind = it->second;
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    TROUPE_TRY_STATUS(read_pattern(part, step.pattern, step.is_regex));
    TROUPE_TRY(step.content, part.string_or("content", ""));
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    TROUPE_TRY(step.content, part.string_or("prepend", ""));
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    TROUPE_TRY(step.strip_left, part.boolean_or("strip_left", true));
    TROUPE_TRY(step.strip_right, part.boolean_or("strip_right", true));
  } else {
    return unsupported(part, type, kNormalizers);
  }
  out.push_back(std::move(step));
  return {};
}

Status read_split(const JsonView& part, PreTokenizerStep& step) {
  static const std::unordered_map<std::string, SplitBehavior> behaviors = {
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  TROUPE_TRY_STATUS(read_pattern(part, step.pattern, step.is_regex));
  TROUPE_TRY(const auto behavior, part.at("behavior"));
  TROUPE_TRY(const auto name, behavior.string());
  const auto it = behaviors.find(name);
  if (it == behaviors.end())
    return behavior.error(ErrorCode::kInvalidArgument, "is '" + name + "', which is not supported");
  step.behavior = it->second;
  TROUPE_TRY(step.invert, part.boolean_or("invert", false));
  return {};
}

Status read_pre_tokenizer(const JsonView& part, std::vector<PreTokenizerStep>& out) {
  TROUPE_TRY(const auto type, type_of(part));
  PreTokenizerStep step;
  if (type == "Sequence") {
    TROUPE_TRY(const auto list, part.at("pretokenizers"));
    TROUPE_TRY(const auto count, list.array_size());
    for (std::size_t i = 0; i < count; ++i) TROUPE_TRY_STATUS(read_pre_tokenizer(list.element(i), out));
    return {};
  }
  if (type == "Split") {
    TROUPE_TRY_STATUS(read_split(part, step));
  } else if (type == "ByteLevel") {
    step.kind = PreTokenizerStep::Kind::kByteLevel;
    TROUPE_TRY(step.add_prefix_space, part.boolean_or("add_prefix_space", true));
    TROUPE_TRY(step.use_regex, part.boolean_or("use_regex", true));
  } else if (type == "Digits") {
    step.kind = PreTokenizerStep::Kind::kDigits;
    TROUPE_TRY(step.individual_digits, part.boolean_or("individual_digits", false));
  } else {
    return unsupported(part, type, kPreTokenizers);
  }
  if (!out.empty() && out.back().kind == PreTokenizerStep::Kind::kByteLevel)
    return part.error(ErrorCode::kInvalidArgument, "comes after ByteLevel, which must be the last pre-tokenizer");
  out.push_back(std::move(step));
  return {};
}

Status read_decoder(const JsonView& part, std::vector<DecoderStep>& out) {
  using Kind = DecoderStep::Kind;
  TROUPE_TRY(const auto type, type_of(part));
  DecoderStep step;
  if (type == "Sequence") {
    TROUPE_TRY(const auto list, part.at("decoders"));
    TROUPE_TRY(const auto count, list.array_size());
    for (std::size_t i = 0; i < count; ++i) TROUPE_TRY_STATUS(read_decoder(list.element(i), out));
    return {};
  }
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    bool is_regex = false;
    TROUPE_TRY_STATUS(read_pattern(part, step.pattern, is_regex));
    if (is_regex)
      return part.error(ErrorCode::kInvalidArgument, "replaces a Regex, which is not supported in decoders");
    TROUPE_TRY(step.content, part.string_or("content", ""));
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    TROUPE_TRY(step.content, part.string_or("content", " "));
    TROUPE_TRY(const auto start, part.at("start"));
    TROUPE_TRY(const auto count, start.integer(0, 16));
    step.strip_start = static_cast<int>(count);
    TROUPE_TRY(const auto stop, part.at("stop"));
    TROUPE_TRY_STATUS(stop.integer(0, 0).map([](auto) {}));
    if (step.content != " ")
      return part.error(ErrorCode::kInvalidArgument, "strips something else than spaces, which is not supported");
  } else {
    return unsupported(part, type, kDecoders);
  }
  out.push_back(std::move(step));
  return {};
}

Status read_template(const JsonView& part, TokenizerSpec& spec) {
  TROUPE_TRY(const auto single, part.at("single"));
  TROUPE_TRY(const auto count, single.array_size());
  bool seen_text = false;
  for (std::size_t i = 0; i < count; ++i) {
    const JsonView item = single.element(i);
    if (item.find("Sequence")) {
      if (seen_text) return item.error(ErrorCode::kInvalidArgument, "names the text twice, which is not supported");
      seen_text = true;
      continue;
    }
    TROUPE_TRY(const auto special, item.at("SpecialToken"));
    TROUPE_TRY(const auto holder, special.at("id"));
    TROUPE_TRY(const auto name, holder.string());
    TROUPE_TRY(const auto table, part.at("special_tokens"));
    TROUPE_TRY(const auto entry, table.at(name));
    TROUPE_TRY(const auto ids, entry.at("ids"));
    TROUPE_TRY(const auto id_count, ids.array_size());
    for (std::size_t k = 0; k < id_count; ++k) {
      TROUPE_TRY(const auto id, ids.element(k).integer(0, kVocabularyMax - 1));
      (seen_text ? spec.suffix : spec.prefix).push_back(static_cast<std::int32_t>(id));
    }
  }
  return {};
}

Status read_post_processor(const JsonView& part, TokenizerSpec& spec) {
  TROUPE_TRY(const auto type, type_of(part));
  if (type == "ByteLevel") return {}; // only offsets, which troupe does not have
  if (type == "TemplateProcessing") return read_template(part, spec);
  if (type != "Sequence") return unsupported(part, type, kPostProcessors);
  TROUPE_TRY(const auto list, part.at("processors"));
  TROUPE_TRY(const auto count, list.array_size());
  for (std::size_t i = 0; i < count; ++i) TROUPE_TRY_STATUS(read_post_processor(list.element(i), spec));
  return {};
}

using IdBySpelling = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

Status read_vocab(const JsonView& model, TokenizerSpec& spec, IdBySpelling& ids) {
  TROUPE_TRY(const auto vocab, model.at("vocab"));
  TROUPE_TRY_STATUS(vocab.require_object());
  ids.reserve(vocab.value().size());
  const std::int64_t id_max = id_limit(vocab.value().size()) - 1;
  for (const auto& [spelling, number] : vocab.value().items()) {
    const JsonView entry(number, {}, {});
    const auto id = entry.integer(0, id_max);
    if (!id) return vocab.error(ErrorCode::kCorrupt, "gives '" + spelling + "' an id that " + id.error().message);
    if (spelling.empty()) return vocab.error(ErrorCode::kCorrupt, "has an empty token");
    if (static_cast<std::size_t>(*id) >= spec.vocab.size()) spec.vocab.resize(static_cast<std::size_t>(*id) + 1);
    auto& slot = spec.vocab[static_cast<std::size_t>(*id)];
    if (!slot.empty())
      return vocab.error(ErrorCode::kCorrupt,
                         "gives the id " + std::to_string(*id) + " to both '" + slot + "' and '" + spelling + "'");
    slot = spelling;
    ids.emplace(spelling, static_cast<std::int32_t>(*id));
  }
  return {};
}

Status read_merges(const JsonView& model, TokenizerSpec& spec, const IdBySpelling& ids) {
  TROUPE_TRY(const auto merges, model.at("merges"));
  TROUPE_TRY(const auto count, merges.array_size());
  spec.merges.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& item = merges.value()[i];
    std::string_view left, right;
    if (item.is_string()) {
      const std::string_view both = item.get_ref<const std::string&>();
      const std::size_t space = both.find(' ', 1);
      if (space == std::string_view::npos)
        return merges.element(i).error(ErrorCode::kCorrupt, "must be two tokens with a space between");
      left = both.substr(0, space), right = both.substr(space + 1);
    } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      left = item[0].get_ref<const std::string&>(), right = item[1].get_ref<const std::string&>();
    } else {
      return merges.element(i).wrong_type("a string or a pair of strings");
    }
    const auto l = ids.find(left), r = ids.find(right);
    if (l == ids.end() || r == ids.end())
      return merges.element(i).error(ErrorCode::kCorrupt, "names '" + std::string(l == ids.end() ? left : right) +
                                                              "', which is not in the vocabulary");
    spec.merges.emplace_back(l->second, r->second);
  }
  return {};
}

Status read_model(const JsonView& model, TokenizerSpec& spec) {
  TROUPE_TRY_STATUS(model.require_object());
  TROUPE_TRY(const auto type, model.string_or("type", "BPE"));
  if (type != "BPE") return unsupported(model, type, "BPE");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    TROUPE_TRY(const auto text, model.string_or(affix, ""));
    if (!text.empty())
      return model.error(ErrorCode::kInvalidArgument, std::string("sets ") + affix + ", which is not supported");
  }
  if (const auto dropout = model.find("dropout"); dropout && dropout->value() != 0.0)
    return dropout->error(ErrorCode::kInvalidArgument, "is set, which is not supported: encoding would be random");
  TROUPE_TRY(spec.unknown, model.string_or("unk_token", ""));
  TROUPE_TRY(spec.fuse_unknown, model.boolean_or("fuse_unk", false));
  TROUPE_TRY(spec.byte_fallback, model.boolean_or("byte_fallback", false));
  TROUPE_TRY(spec.ignore_merges, model.boolean_or("ignore_merges", false));
  IdBySpelling ids;
  TROUPE_TRY_STATUS(read_vocab(model, spec, ids));
  return read_merges(model, spec, ids);
}

Status read_added_tokens(const JsonView& list, TokenizerSpec& spec) {
  TROUPE_TRY(const auto count, list.array_size());
  for (std::size_t i = 0; i < count; ++i) {
    const JsonView item = list.element(i);
    AddedToken token;
    TROUPE_TRY(const auto id, item.at("id"));
    TROUPE_TRY(const auto number, id.integer(0, kVocabularyMax - 1));
    token.id = static_cast<std::int32_t>(number);
    TROUPE_TRY(const auto content, item.at("content"));
    TROUPE_TRY(token.content, content.string());
    TROUPE_TRY(token.special, item.boolean_or("special", false));
    TROUPE_TRY(token.normalized, item.boolean_or("normalized", !token.special));
    TROUPE_TRY(token.lstrip, item.boolean_or("lstrip", false));
    TROUPE_TRY(token.rstrip, item.boolean_or("rstrip", false));
    TROUPE_TRY(token.single_word, item.boolean_or("single_word", false));
    spec.added.push_back(std::move(token));
  }
  return {};
}

// "<eos>" or {"content": "<eos>", ...}, looked up among the added tokens and the vocabulary.
Result<std::optional<std::int32_t>> named_token(const JsonView& config, const std::string& key,
                                                const TokenizerSpec& spec) {
  const auto holder = config.find(key);
  if (!holder) return std::nullopt;
  const auto inner = holder->find("content");
  TROUPE_TRY(const auto name, inner ? inner->string() : holder->string());
  for (const auto& token : spec.added)
    if (token.content == name) return token.id;
  for (std::size_t id = 0; id < spec.vocab.size(); ++id)
    if (spec.vocab[id] == name && !name.empty()) return static_cast<std::int32_t>(id);
  return holder->error(ErrorCode::kCorrupt, "is '" + name + "', which the tokenizer does not have");
}

Status read_config(const std::filesystem::path& path, TokenizerSpec& spec) {
  if (!std::filesystem::exists(path)) return {};
  TROUPE_TRY(const auto text, read_file(path));
  TROUPE_TRY(const auto json, parse_json(text, path.string()));
  const JsonView config(json, path.string());
  TROUPE_TRY(spec.bos, named_token(config, "bos_token", spec));
  TROUPE_TRY(spec.eos, named_token(config, "eos_token", spec));
  TROUPE_TRY(spec.pad, named_token(config, "pad_token", spec));
  return {};
}

} // namespace

Result<TokenizerSpec> parse_tokenizer_json(std::string_view text, const std::string& where) {
  TROUPE_TRY(const auto json, parse_json(text, where));
  const JsonView root(json, where);
  TokenizerSpec spec;
  TROUPE_TRY(const auto model, root.at("model"));
  TROUPE_TRY_STATUS(read_model(model, spec));
  if (const auto part = root.find("normalizer")) TROUPE_TRY_STATUS(read_normalizer(*part, spec.normalizers));
  if (const auto part = root.find("pre_tokenizer")) TROUPE_TRY_STATUS(read_pre_tokenizer(*part, spec.pre_tokenizers));
  if (const auto part = root.find("decoder")) TROUPE_TRY_STATUS(read_decoder(*part, spec.decoders));
  if (const auto part = root.find("post_processor")) TROUPE_TRY_STATUS(read_post_processor(*part, spec));
  if (const auto part = root.find("added_tokens")) TROUPE_TRY_STATUS(read_added_tokens(*part, spec));
  return spec;
}

Result<TokenizerSpec> read_tokenizer_json(const std::filesystem::path& path) {
  TROUPE_TRY(const auto text, read_file(path));
  TROUPE_TRY(auto spec, parse_tokenizer_json(text, path.string()));
  TROUPE_TRY_STATUS(read_config(path.parent_path() / "tokenizer_config.json", spec));
  return spec;
}

} // namespace troupe::data
