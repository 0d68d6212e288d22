/// @file
/// Conversations to token ids. Control tokens come from the structure only, what people wrote is encoded as plain text,
/// and the mask of sampled tokens is known from the structure too: nothing is ever found by scanning what somebody wrote.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/message.h"
#include "data/tokenizer.h"

namespace troupe::data {

enum class ReplyFormat : std::uint8_t;

/// Token ids and which of them the model says (assistant content and the token that ends the turn).
struct Rendered {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> sampled; ///< One per id; 1 = said by the model.
};

/// What a format is made from.
struct FormatSource {
  /// "auto": the model's own template, else chatml where the tokenizer has its tokens, else plain. "template", "chatml", "plain".
  std::string name = "auto";
  std::string jinja = {};                  ///< The model's own template (find_chat_template); empty: it has none.
  std::vector<std::int32_t> end_ids = {};  ///< What the model's configuration says ends a reply.
};

/// What a template is told besides the messages.
struct ChatExtras {
  std::string tools = {};     ///< A JSON list of function definitions; empty: none.
  std::string variables = {}; ///< A JSON object of this template's own switches; empty: none.
  std::time_t now = 0;        ///< For templates that print the date; 0: the clock.
};

/// The date that templates print in runs (2026-01-01), so that a prompt is the same whenever and wherever it is rendered.
inline constexpr std::time_t kTrainingDate = 1767225600;

/// A named prompt format, bound to the control tokens of one tokenizer.
///
/// "chatml": `<|im_start|>ROLE\nCONTENT<|im_end|>\n` per message. "plain": the contents one after another, and the
/// end-of-text token after what the assistant says. "template": the Jinja template of the model's release.
class PromptFormat {
 public:
  /// Errors: kNotFound for an unknown name (lists the known ones); kInvalidArgument when the
  /// tokenizer lacks a needed token or the model a template; kCorrupt for a template that cannot be read.
  [[nodiscard]] static Result<PromptFormat> create(const FormatSource& source, const Tokenizer& tokenizer);
  [[nodiscard]] static Result<PromptFormat> create(std::string_view name, const Tokenizer& tokenizer);

  /// The whole conversation. `generation_prompt` opens an assistant turn at the end. The tokenizer
  /// is the one of `create`. A template's rendering has no mask (all 0): see documents().
  /// Errors: those of ChatTemplate::render; kInvalidArgument for extras that are no JSON.
  [[nodiscard]] Result<Rendered> render(std::span<const Message> messages, bool generation_prompt, const Tokenizer& tokenizer,
                                        const ChatExtras& extras = {}) const;

  /// What there is to learn from a conversation: documents in which every assistant turn is said exactly once, after what the model would have
  /// been shown before it. One document, unless the template shows earlier turns otherwise than they were said.
  [[nodiscard]] Result<std::vector<Rendered>> documents(std::span<const Message> messages, const Tokenizer& tokenizer, const ChatExtras& extras = {}) const;

  /// Goes on with a conversation that ended in a generation prompt: appends what was sampled, id for id (never decoded
  /// and encoded again), closes the turn if the sample did not, and renders the next messages. The
  /// old ids stay a prefix of the new ones. Precondition: the format is no template (Conversation goes on with those).
  void continue_with(Rendered& conversation, std::span<const std::int32_t> sampled, std::span<const Message> next,
                     bool generation_prompt, const Tokenizer& tokenizer) const;

  /// The ids that end an assistant turn; the first is the one that training uses.
  [[nodiscard]] const std::vector<std::int32_t>& stop_ids() const { return stop_ids_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// The same format in Jinja, for exported models; empty for "plain".
  [[nodiscard]] std::string_view jinja() const;
  [[nodiscard]] bool is_template() const { return template_ != nullptr; }
  /// How replies in this format are written.
  [[nodiscard]] ReplyFormat reply_format() const;

  /// A template's rendering with the origin of its parts. Precondition: is_template().
  [[nodiscard]] Result<std::vector<TextPart>> parts(std::span<const Message> messages, bool generation_prompt, const ChatExtras& extras) const;

 private:
  struct Release;
  void append_messages(Rendered& out, std::span<const Message> messages, const Tokenizer& tokenizer) const;
  void open_assistant(Rendered& out, const Tokenizer& tokenizer) const;
  void add_stop_id(std::int32_t id);
  [[nodiscard]] Status bind_chatml(const Tokenizer& tokenizer);
  [[nodiscard]] Status bind_template(const std::string& jinja, const Tokenizer& tokenizer);
  [[nodiscard]] std::size_t turn_length(std::span<const std::int32_t> ids) const;

  std::string name_;
  std::vector<std::int32_t> stop_ids_;
  std::int32_t turn_start_ = -1; ///< -1 in "plain".
  std::int32_t turn_end_ = -1;
  std::shared_ptr<const Release> template_;
};

/// The names of all prompt formats.
[[nodiscard]] std::span<const std::string_view> prompt_format_names();

/// Whether `ids` begins with `prefix`, token for token: what every turn of a conversation owes the one before.
[[nodiscard]] bool extends(std::span<const std::int32_t> prefix, std::span<const std::int32_t> ids);

/// Parts without the first `bytes` bytes of their text.
[[nodiscard]] std::vector<TextPart> drop_text(std::span<const TextPart> parts, std::size_t bytes);
[[nodiscard]] std::string joined_text(std::span<const TextPart> parts);

} // namespace troupe::data
