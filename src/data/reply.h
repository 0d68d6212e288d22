/// @file
/// What a model said, taken apart: reasoning, answer, calls of tools. One grammar per family of releases.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/chat.h"

namespace troupe::data {

struct ToolCall {
  std::string name;
  nlohmann::ordered_json arguments; ///< Always an object.
  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

/// A call that is cut off or malformed is never one of `calls`: it is a sentence in `problems`, for an error turn that tells the model.
struct Reply {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;
  std::vector<std::string> problems;
};

/// How a family writes its replies.
enum class ReplyFormat : std::uint8_t {
  kPlain,      ///< `<think>` blocks at most.
  kQwen3,      ///< JSON in `<tool_call>`.
  kQwen3_5,    ///< `<function=NAME>` and `<parameter=KEY>` in `<tool_call>`.
  kLlama3,     ///< The whole reply is {"name", "parameters"}.
  kHarmony,    ///< GPT-OSS: channels.
  kDeepSeekV3, ///< JSON between special tokens.
  kDeepSeekV4, ///< DSML.
  kMuse,       ///< Recipients.
};
/// The names a config uses: "plain", "qwen3", "qwen3_5", "llama3", "gpt_oss", "deepseek_v3", "deepseek_v4", "muse_spark".
/// Errors: kNotFound listing them.
[[nodiscard]] Result<ReplyFormat> parse_reply_format(std::string_view name);

/// The grammar of the replies that a release's chat template writes.
[[nodiscard]] ReplyFormat reply_format_of(std::string_view jinja);

/// As a message of a conversation: reasoning_content and tool_calls are where they are told from the content.
[[nodiscard]] Message to_message(const Reply& reply);

/// Takes a reply apart.
/// `text`: the sampled ids decoded with their control tokens, without the one that ended the turn or with it. `thinking`: the prompt has opened the
/// reasoning already. `tools`: the definitions that the prompt held (null: none); they say which values are strings where a format does not.
/// An object that a model writes twice in a row counts once. Determinism: a function of its arguments.
[[nodiscard]] Reply parse_reply(ReplyFormat format, std::string_view text, bool thinking, const nlohmann::ordered_json& tools);

} // namespace troupe::data
