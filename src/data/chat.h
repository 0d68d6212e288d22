/// @file
/// Conversations to token ids. Control tokens come from the structure only, what people wrote is encoded as plain text,
/// and the mask of sampled tokens is known from the structure too: nothing is ever found by scanning ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/tokenizer.h"

namespace troupe::data {

struct Message {
  std::string role;    ///< "system", "user", "assistant" or "tool".
  std::string content; ///< UTF-8, exactly as written.
  friend bool operator==(const Message&, const Message&) = default;
};

/// Token ids and which of them the model says (assistant content and the token that ends the turn).
struct Rendered {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> sampled; ///< One per id; 1 = said by the model.
};

/// A named prompt format, bound to the control tokens of one tokenizer.
///
/// "chatml": `<|im_start|>ROLE\nCONTENT<|im_end|>\n` per message. "plain": the contents one after another, and the
/// end-of-text token after what the assistant says.
class PromptFormat {
 public:
  /// Errors: kNotFound for an unknown name (lists the known ones); kInvalidArgument when the
  /// tokenizer lacks a needed token.
  [[nodiscard]] static Result<PromptFormat> create(std::string_view name, const Tokenizer& tokenizer);

  /// The whole conversation. `generation_prompt` opens an assistant turn at the end. The tokenizer
  /// is the one of `create`.
  [[nodiscard]] Rendered render(std::span<const Message> messages, bool generation_prompt,
                                const Tokenizer& tokenizer) const;

  /// Goes on with a conversation that ended in a generation prompt: appends what was sampled, id for id (never decoded
  /// and encoded again), closes the turn if the sample did not, and renders the next messages. The
  /// old ids stay a prefix of the new ones.
  void continue_with(Rendered& conversation, std::span<const std::int32_t> sampled, std::span<const Message> next,
                     bool generation_prompt, const Tokenizer& tokenizer) const;

  /// The ids that end an assistant turn; the first is the one that training uses.
  [[nodiscard]] const std::vector<std::int32_t>& stop_ids() const { return stop_ids_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// The same format in Jinja, for exported models; empty for "plain".
  [[nodiscard]] std::string_view jinja() const;

 private:
  void append_messages(Rendered& out, std::span<const Message> messages, const Tokenizer& tokenizer) const;
  void open_assistant(Rendered& out, const Tokenizer& tokenizer) const;

  std::string name_;
  std::vector<std::int32_t> stop_ids_;
  std::int32_t turn_start_ = -1; ///< -1 in "plain".
  std::int32_t turn_end_ = -1;
};

/// The names of all prompt formats.
[[nodiscard]] std::span<const std::string_view> prompt_format_names();

/// Whether `ids` begins with `prefix`, token for token: what every turn of a conversation owes the one before.
[[nodiscard]] bool extends(std::span<const std::int32_t> prefix, std::span<const std::int32_t> ids);

} // namespace troupe::data
