/// @file
/// A conversation that a model takes part in: what it said stays the ids that it sampled.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/chat.h"

namespace troupe::data {

struct Reply;

/// Messages as a text, to be sent and read again. Errors: kCorrupt for anything else.
[[nodiscard]] std::string messages_to_text(std::span<const Message> messages);
[[nodiscard]] Result<std::vector<Message>> messages_from_text(const std::string& text);

/// Ends in a generation prompt, always. Borrows format and tokenizer.
class Conversation {
 public:
  Conversation(const PromptFormat& format, const Tokenizer& tokenizer, ChatExtras extras = {});

  /// Starts over with these messages. Errors: those of PromptFormat::render.
  [[nodiscard]] Status begin(std::vector<Message> messages);

  /// Goes on where another one was: these messages, for which a template's ids are `rendered` (as begin() or go_on() left them).
  /// Errors: those of PromptFormat::render.
  [[nodiscard]] Status resume(std::vector<Message> messages, Rendered rendered);

  /// The model said `sampled`, then `next` came. True: all earlier ids are a prefix of the new ones, the sampled ones among them id for id.
  /// False: the template shows what came before otherwise than it was (reasoning taken out, text trimmed), so the ids are the conversation
  /// rendered anew and nothing in them was sampled: a new training sample. Errors: those of PromptFormat::render; then nothing has changed.
  [[nodiscard]] Result<bool> go_on(std::span<const std::int32_t> sampled, std::span<const Message> next);

  /// What is wrong with the calls of tools in a reply; empty: nothing, or the format knows no calls.
  [[nodiscard]] std::vector<std::string> problems_of(std::span<const std::int32_t> sampled) const;
  /// The message that these sampled ids are: content, reasoning_content, tool_calls, by the format's grammar.
  [[nodiscard]] Message message_of(std::span<const std::int32_t> sampled) const;

  [[nodiscard]] const Rendered& rendered() const { return rendered_; }
  [[nodiscard]] const std::vector<Message>& messages() const { return messages_; }
  /// Whether the generation prompt has opened the model's reasoning already.
  [[nodiscard]] bool thinking() const;

 private:
  [[nodiscard]] Reply reply_of(std::span<const std::int32_t> sampled) const;

  const PromptFormat* format_;
  const Tokenizer* tokenizer_;
  ChatExtras extras_;
  std::vector<Message> messages_;
  Rendered rendered_;
  std::string text_; ///< What the ids of a template's rendering stand for.
};

/// Whether a prompt ends in the midst of reasoning.
[[nodiscard]] bool opens_reasoning(std::string_view prompt);

} // namespace troupe::data
