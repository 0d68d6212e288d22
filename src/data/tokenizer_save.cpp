// Writes a TokenizerSpec as Hugging Face files. The small sections go through nlohmann::ordered_json; the vocabulary
// and the merges, which have hundreds of thousands of entries, are written straight into the text.
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "data/tokenizer.h"

namespace troupe::data {
namespace {

using Json = nlohmann::ordered_json;

Json pattern_json(const std::string& pattern, bool is_regex) { return {{is_regex ? "Regex" : "String", pattern}}; }

Json normalizer_json(const NormalizerStep& step) {
  using Kind = NormalizerStep::Kind;
  switch (step.kind) {
    case Kind::kNfc:
      return {{"type", "NFC"}};
    case Kind::kNfd:
      return {{"type", "NFD"}};
    case Kind::kNfkc:
      return {{"type", "NFKC"}};
    case Kind::kNfkd:
      return {{"type", "NFKD"}};
    case Kind::kLowercase:
      return {{"type", "Lowercase"}};
    case Kind::kReplace:
      return {{"type", "Replace"}, {"pattern", pattern_json(step.pattern, step.is_regex)}, {"content", step.content}};
    case Kind::kPrepend:
      return {{"type", "Prepend"}, {"prepend", step.content}};
    case Kind::kStrip:
      return {{"type", "Strip"}, {"strip_left", step.strip_left}, {"strip_right", step.strip_right}};
  }
  return nullptr;
}

std::string_view behavior_name(SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return "Isolated";
    case SplitBehavior::kRemoved:
      return "Removed";
    case SplitBehavior::kMergedWithPrevious:
      return "MergedWithPrevious";
    case SplitBehavior::kMergedWithNext:
      return "MergedWithNext";
    case SplitBehavior::kContiguous:
      return "Contiguous";
  }
  return "";
}

Json pre_tokenizer_json(const PreTokenizerStep& step) {
  using Kind = PreTokenizerStep::Kind;
  switch (step.kind) {
    case Kind::kSplit:
      return {{"type", "Split"},
              {"pattern", pattern_json(step.pattern, step.is_regex)},
              {"behavior", behavior_name(step.behavior)},
              {"invert", step.invert}};
    case Kind::kByteLevel:
      return {{"type", "ByteLevel"},
              {"add_prefix_space", step.add_prefix_space},
              {"trim_offsets", true},
              {"use_regex", step.use_regex}};
    case Kind::kDigits:
      return {{"type", "Digits"}, {"individual_digits", step.individual_digits}};
  }
  return nullptr;
}

Json decoder_json(const DecoderStep& step) {
  using Kind = DecoderStep::Kind;
  switch (step.kind) {
    case Kind::kByteLevel:
      return {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
    case Kind::kByteFallback:
      return {{"type", "ByteFallback"}};
    case Kind::kFuse:
      return {{"type", "Fuse"}};
    case Kind::kReplace:
      return {{"type", "Replace"}, {"pattern", pattern_json(step.pattern, false)}, {"content", step.content}};
    case Kind::kStrip:
      return {{"type", "Strip"}, {"content", step.content}, {"start", step.strip_start}, {"stop", 0}};
  }
  return nullptr;
}

// null, the only step, or a Sequence.
template <class Step, class ToJson>
Json sequence(const std::vector<Step>& steps, const char* list_name, ToJson to_json) {
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return to_json(steps[0]);
  Json list = Json::array();
  for (const auto& step : steps) list.push_back(to_json(step));
  return {{"type", "Sequence"}, {list_name, std::move(list)}};
}

Json post_processor_json(const Tokenizer& tokenizer) {
  const TokenizerSpec& spec = tokenizer.spec();
  if (spec.prefix.empty() && spec.suffix.empty()) return nullptr;
  Json single = Json::array(), pair = Json::array(), table = Json::object();
  const auto special = [&](std::int32_t id, int type) {
    const std::string name(tokenizer.bytes(id));
    table[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
    return Json{{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  const auto text = [&](const char* which, int type) {
    Json list = Json::array();
    for (const auto id : spec.prefix) list.push_back(special(id, type));
    list.push_back({{"Sequence", {{"id", which}, {"type_id", type}}}});
    for (const auto id : spec.suffix) list.push_back(special(id, type));
    return list;
  };
  single = text("A", 0);
  pair = single;
  for (auto& item : text("B", 1)) pair.push_back(item);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", table}};
}

Json added_token_json(const AddedToken& token) {
  return {{"id", token.id},          {"content", token.content}, {"single_word", token.single_word},
          {"lstrip", token.lstrip},  {"rstrip", token.rstrip},   {"normalized", token.normalized},
          {"special", token.special}};
}

std::string quoted(const std::string& text) { return Json(text).dump(); }

std::string model_text(const TokenizerSpec& spec) {
  std::string out = R"({"type":"BPE","dropout":null,"unk_token":)";
  out += spec.unknown.empty() ? "null" : quoted(spec.unknown);
  out += R"(,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":)";
  out += spec.fuse_unknown ? "true" : "false";
  out += R"(,"byte_fallback":)";
  out += spec.byte_fallback ? "true" : "false";
  out += R"(,"ignore_merges":)";
  out += spec.ignore_merges ? "true" : "false";
  out += ",\"vocab\":{";
  bool first = true;
  for (std::size_t id = 0; id < spec.vocab.size(); ++id) {
    if (spec.vocab[id].empty()) continue;
    out += first ? "\n" : ",\n";
    first = false;
    out += quoted(spec.vocab[id]) + ":" + std::to_string(id);
  }
  out += "},\"merges\":[";
  first = true;
  for (const auto& [left, right] : spec.merges) {
    out += first ? "\n[" : ",\n[";
    first = false;
    out += quoted(spec.vocab[static_cast<std::size_t>(left)]) + "," +
           quoted(spec.vocab[static_cast<std::size_t>(right)]) + "]";
  }
  return out + "]}";
}

std::string config_text(const Tokenizer& tokenizer, std::string_view chat_template) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  const auto name = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) config[key] = std::string(tokenizer.bytes(*id));
  };
  name("bos_token", tokenizer.bos());
  name("eos_token", tokenizer.eos());
  name("pad_token", tokenizer.pad());
  if (!tokenizer.spec().unknown.empty()) config["unk_token"] = tokenizer.spec().unknown;
  if (!chat_template.empty()) config["chat_template"] = std::string(chat_template);
  return config.dump(2) + "\n";
}

} // namespace

Status Tokenizer::save(const std::filesystem::path& folder, std::string_view chat_template) const {
  const TokenizerSpec& s = spec();
  Json added = Json::array();
  for (const auto& token : s.added) added.push_back(added_token_json(token));
  std::string text = "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n\"added_tokens\":" + added.dump();
  text += ",\n\"normalizer\":" + sequence(s.normalizers, "normalizers", normalizer_json).dump();
  text += ",\n\"pre_tokenizer\":" + sequence(s.pre_tokenizers, "pretokenizers", pre_tokenizer_json).dump();
  text += ",\n\"post_processor\":" + post_processor_json(*this).dump();
  text += ",\n\"decoder\":" + sequence(s.decoders, "decoders", decoder_json).dump();
  text += ",\n\"model\":" + model_text(s) + "}\n";
  TROUPE_TRY_STATUS(make_folders(folder));
  TROUPE_TRY_STATUS(write_file_atomic(folder / "tokenizer.json", text));
  return write_file_atomic(folder / "tokenizer_config.json", config_text(*this, chat_template));
}

} // namespace troupe::data
