#include "data/patterns.h"

#include <array>

#include "data/pre_tokenizer.h"

namespace troupe::data {
namespace {

// The contraction group, letters, numbers, the rest, line ends, spaces: one idea with the sets changed from family to
// family. Source: the tokenizer.json and tiktoken definitions of each family.
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::array<std::string_view, 3> kDeepseekV3 = {
    R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::array<std::string_view, 5> kDeepseekCoder = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                                            R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)",
                                                            R"(\p{N})"};
// What llama.cpp does with files that name no pattern.
constexpr std::array<std::string_view, 4> kGgufDefault = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)",
                                                          R"([0-9][0-9][0-9])"};

PreTokenizerStep split(std::string_view pattern) {
  PreTokenizerStep step;
  step.pattern = pattern;
  return step;
}

PreTokenizerStep byte_level(bool use_regex) {
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::kByteLevel;
  step.use_regex = use_regex;
  return step;
}

PreTokenizerStep single_digits() {
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::kDigits;
  step.individual_digits = true;
  return step;
}

std::vector<PreTokenizerStep> splits(std::span<const std::string_view> patterns) {
  std::vector<PreTokenizerStep> steps;
  for (const auto pattern : patterns) steps.push_back(split(pattern));
  steps.push_back(byte_level(false));
  return steps;
}

std::vector<PreTokenizerStep> splits(std::string_view pattern) { return splits(std::span(&pattern, 1)); }

std::vector<RankFileToken> qwen_tokens() {
  std::vector<RankFileToken> tokens;
  for (const char* name : {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
                           "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
                           "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"})
    tokens.push_back({name, true});
  for (const char* name :
       {"<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
        "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"})
    tokens.push_back({name, false});
  return tokens;
}

NamedPattern qwen2() {
  return {true, true, splits(kQwen2), qwen_tokens(), {}, "<|endoftext|>", "<|endoftext|>", false};
}

NamedPattern qwen3_5() {
  NamedPattern p{true, true, splits(kQwen35), qwen_tokens(), {}, "<|endoftext|>", "<|endoftext|>", false};
  for (const char* name : {"<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
                           "<tts_text_bos_single>", "<|audio_pad|>"})
    p.added.push_back({name, true});
  return p;
}

NamedPattern llama3() {
  NamedPattern p{false, true, splits(kLlama3), {}, "<|begin_of_text|>", "<|end_of_text|>", {}, true};
  int reserved = 0;
  const auto reserve = [&] {
    p.added.push_back({"<|reserved_special_token_" + std::to_string(reserved++) + "|>", true});
  };
  p.added = {{"<|begin_of_text|>"}, {"<|end_of_text|>"}};
  reserve(), reserve();
  p.added.push_back({"<|finetune_right_pad_id|>"});
  reserve();
  for (const char* name : {"<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"})
    p.added.push_back({name});
  while (p.added.size() < 256) reserve();
  p.pad = "<|finetune_right_pad_id|>";
  return p;
}

NamedPattern o200k() {
  NamedPattern p{false, true, splits(kO200k), {}, "<|startoftext|>", "<|return|>", "<|endoftext|>", false};
  for (const char* name :
       {"<|startoftext|>", "<|endoftext|>", "<|reserved_200000|>", "<|reserved_200001|>", "<|return|>", "<|constrain|>",
        "<|reserved_200004|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|reserved_200009|>",
        "<|reserved_200010|>", "<|reserved_200011|>", "<|call|>"})
    p.added.push_back({name});
  return p;
}

NamedPattern gpt2() {
  return {false, false, {byte_level(true)}, {{"<|endoftext|>"}}, {}, "<|endoftext|>", "<|endoftext|>", false};
}

NamedPattern bare(std::vector<PreTokenizerStep> steps, bool ignore_merges = false) {
  return {false, ignore_merges, std::move(steps), {}, {}, {}, {}, false};
}

NamedPattern smollm() { return bare({single_digits(), byte_level(true)}); }
NamedPattern deepseek_v3() { return bare(splits(kDeepseekV3)); }
NamedPattern deepseek_coder() { return bare(splits(kDeepseekCoder)); }
NamedPattern gguf_default() { return bare(splits(kGgufDefault)); }
NamedPattern dbrx() { return bare(splits(kLlama3)); }

struct Row {
  std::string_view name;
  NamedPattern (*make)();
};

// The first name of a family is troupe's; the others are what `tokenizer.ggml.pre` calls it.
constexpr Row kRows[] = {
    {"gpt-2", gpt2},
    {"gpt2", gpt2},
    {"mpt", gpt2},
    {"olmo", gpt2},
    {"smollm", smollm},
    {"starcoder", smollm},
    {"refact", smollm},
    {"command-r", smollm},
    {"codeshell", smollm},
    {"qwen2", qwen2},
    {"qwen3", qwen2},
    {"deepseek-r1-qwen", qwen2},
    {"qwen3_5", qwen3_5},
    {"qwen35", qwen3_5},
    {"llama3", llama3},
    {"llama-bpe", llama3},
    {"llama-v3", llama3},
    {"falcon3", llama3},
    {"dbrx", dbrx},
    {"smaug-bpe", dbrx},
    {"o200k", o200k},
    {"gpt-4o", o200k},
    {"deepseek-v3", deepseek_v3},
    {"deepseek-coder", deepseek_coder},
    {"default", gguf_default},
};

} // namespace

Result<NamedPattern> find_pattern(std::string_view name) {
  for (const auto& row : kRows)
    if (row.name == name) return row.make();
  std::string known;
  for (const auto& row : kRows) known.append(known.empty() ? "" : ", ").append(row.name);
  return fail(ErrorCode::kInvalidArgument, "unknown splitting pattern '" + std::string(name) + "'; known are " + known);
}

std::string_view pattern_of_file(std::string_view file_name) {
  constexpr std::pair<std::string_view, std::string_view> kFiles[] = {{"qwen3_5", "qwen3_5"}, {"qwen3_6", "qwen3_5"},
                                                                      {"qwen3_8", "qwen3_5"}, {"qwen", "qwen2"},
                                                                      {"o200k", "o200k"},     {"llama3", "llama3"}};
  for (const auto& [prefix, pattern] : kFiles)
    if (file_name.starts_with(prefix)) return pattern;
  return {};
}

} // namespace troupe::data
