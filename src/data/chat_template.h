/// @file
/// Conversations as text by the Jinja template that a model's release brings, with every character's origin kept: what people, tools and models
/// wrote can be told from what the template says, so that it never becomes a control token.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/tokenizer.h"

namespace troupe::data {

/// What a template is given. Keys keep their order: templates print some of this as JSON.
struct ChatRequest {
  nlohmann::ordered_json messages;              ///< As in the chat-completions API: role, content, reasoning_content (or thinking), tool_calls, name, ...
  nlohmann::ordered_json tools;                 ///< Function definitions; null without.
  bool generation_prompt = true;                ///< Opens the assistant's turn at the end.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object(); ///< Of this template: enable_thinking, reasoning_effort, ...
  std::time_t now = 0;                          ///< For templates that print the date; 0: the clock.
};

class ChatTemplate {
 public:
  /// `special`: the tokenizer's named tokens that templates print: bos_token, eos_token, ... .
  /// Errors: kCorrupt with line, column and the words of the parser.
  [[nodiscard]] static Result<ChatTemplate> parse(std::string_view source, nlohmann::ordered_json special = nlohmann::ordered_json::object());

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// The conversation as text. `control`: names of control tokens; where one stands in the request, its text is kept and is marked as
  /// `from_input`, whatever the template does with it (JSON and keys included). All texts joined are what transformers renders.
  /// Determinism: a function of the request. Cost: at most kStepsMax loop turns and macro calls, kBytesMax of text.
  /// Errors: kInvalidArgument with the template's own words when it raises an exception; kCorrupt when it fails; kResourceExhausted when it loops,
  /// recurses or writes beyond the limits.
  [[nodiscard]] Result<std::vector<TextPart>> render(const ChatRequest& request, std::span<const std::string> control) const;

  static constexpr std::size_t kBytesMax = std::size_t{64} << 20; ///< Of all values that one rendering assigns or writes.
  static constexpr std::int64_t kStepsMax = 200'000;      ///< Turns of loops and calls of macros of one rendering.
  static constexpr std::size_t kStackBytesMax = 1u << 20; ///< What recursion may take of the stack.

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<const Program> program);
  std::unique_ptr<const Program> program_;
};

/// The names of a tokenizer's control tokens: the special ones of its added tokens.
[[nodiscard]] std::vector<std::string> control_names(const Tokenizer& tokenizer);

} // namespace troupe::data
