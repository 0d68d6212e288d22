#include "data/chat.h"

#include <algorithm>
#include <array>

namespace troupe::data {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"auto", "template", "chatml", "plain"};
void append_ids(Rendered& out, std::span<const std::int32_t> ids, bool sampled) {
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  out.sampled.insert(out.sampled.end(), ids.size(), sampled ? 1 : 0);
}

void append_id(Rendered& out, std::int32_t id, bool sampled) { append_ids(out, std::span(&id, 1), sampled); }

void append_text(Rendered& out, std::string_view text, bool sampled, const Tokenizer& tokenizer) {
  append_ids(out, tokenizer.encode(text, Special::kPlain), sampled);
}

} // namespace

std::span<const std::string_view> prompt_format_names() { return kNames; }

Status PromptFormat::bind_chatml(const Tokenizer& tokenizer) {
  for (auto [token, id] : {std::pair<const char*, std::int32_t*>{"<|im_start|>", &turn_start_}, {"<|im_end|>", &turn_end_}}) {
    const auto found = tokenizer.token_id(token);
    if (!found || !tokenizer.is_added(*found))
      return fail(ErrorCode::kInvalidArgument, std::string("the prompt format chatml needs the control token ") + token +
                                                   ", which the tokenizer lacks; use the format plain or another tokenizer");
    *id = *found;
  }
  add_stop_id(turn_end_);
  if (const auto end = tokenizer.token_id("<|endoftext|>"); end && tokenizer.is_added(*end)) add_stop_id(*end);
  return {};
}

void PromptFormat::add_stop_id(std::int32_t id) {
  if (std::find(stop_ids_.begin(), stop_ids_.end(), id) == stop_ids_.end()) stop_ids_.push_back(id);
}

Result<PromptFormat> PromptFormat::create(std::string_view name, const Tokenizer& tokenizer) {
  return create(FormatSource{std::string(name), {}, {}}, tokenizer);
}

Result<PromptFormat> PromptFormat::create(const FormatSource& source, const Tokenizer& tokenizer) {
  std::string name = source.name;
  if (name == "auto") {
    const auto has = [&](const char* token) { return tokenizer.token_id(token) && tokenizer.is_added(*tokenizer.token_id(token)); };
    name = !source.jinja.empty() ? "template" : has("<|im_start|>") && has("<|im_end|>") ? "chatml" : "plain";
  }
  PromptFormat format;
  format.name_ = name;
  if (name == "template") {
    if (source.jinja.empty())
      return fail(ErrorCode::kInvalidArgument, "the prompt format template needs a chat template, and the model brings none (chat_template.jinja, or chat_template in tokenizer_config.json)");
    TROUPE_TRY_STATUS(format.bind_template(source.jinja, tokenizer));
  } else if (name == "chatml") {
    TROUPE_TRY_STATUS(format.bind_chatml(tokenizer));
  } else if (name != "plain") {
    return fail(ErrorCode::kNotFound, "unknown prompt format '" + name + "'; known are auto, template, chatml and plain");
  } else if (!tokenizer.eos()) {
    return fail(ErrorCode::kInvalidArgument,
                "the prompt format plain needs an end-of-text token, which the tokenizer does not name (eos_token in "
                "tokenizer_config.json)");
  }
  if (const auto eos = tokenizer.eos()) format.add_stop_id(*eos);
  for (const std::int32_t id : source.end_ids) format.add_stop_id(id);
  return format;
}


void PromptFormat::open_assistant(Rendered& out, const Tokenizer& tokenizer) const {
  if (turn_start_ < 0) return;
  append_id(out, turn_start_, false);
  append_text(out, "assistant\n", false, tokenizer);
}

void PromptFormat::append_messages(Rendered& out, std::span<const Message> messages, const Tokenizer& tokenizer) const {
  for (const auto& message : messages) {
    const bool sampled = message.role == "assistant";
    if (sampled) {
      // The header apart from the content, as in generation, where the content comes from the model token by token.
      open_assistant(out, tokenizer);
      append_text(out, message.content, true, tokenizer);
    } else if (turn_start_ >= 0) {
      append_id(out, turn_start_, false);
      append_text(out, message.role + "\n" + message.content, false, tokenizer);
    } else {
      append_text(out, message.content, false, tokenizer);
    }
    if (turn_start_ >= 0) {
      append_id(out, turn_end_, sampled);
      append_text(out, "\n", false, tokenizer);
    } else if (sampled) {
      append_id(out, stop_ids_.front(), true);
    }
  }
}

Result<Rendered> PromptFormat::render(std::span<const Message> messages, bool generation_prompt, const Tokenizer& tokenizer, const ChatExtras& extras) const {
  Rendered out;
  if (is_template()) {
    TROUPE_TRY(const auto text, parts(messages, generation_prompt, extras));
    out.ids = tokenizer.encode(text);
    out.sampled.assign(out.ids.size(), 0);
    return out;
  }
  append_messages(out, messages, tokenizer);
  if (generation_prompt) open_assistant(out, tokenizer);
  // The begin-of-text token the tokenizer asks for, once.
  const auto& prefix = tokenizer.spec().prefix;
  if (!extends(prefix, out.ids)) {
    out.ids.insert(out.ids.begin(), prefix.begin(), prefix.end());
    out.sampled.insert(out.sampled.begin(), prefix.size(), 0);
  }
  return out;
}

void PromptFormat::continue_with(Rendered& conversation, std::span<const std::int32_t> sampled,
                                 std::span<const Message> next, bool generation_prompt,
                                 const Tokenizer& tokenizer) const {
  append_ids(conversation, sampled, true);
  const std::int32_t turn_end = turn_start_ >= 0 ? turn_end_ : stop_ids_.front();
  if (sampled.empty() || sampled.back() != turn_end) append_id(conversation, turn_end, false);
  if (turn_start_ >= 0) append_text(conversation, "\n", false, tokenizer);
  append_messages(conversation, next, tokenizer);
  if (generation_prompt) open_assistant(conversation, tokenizer);
}

bool extends(std::span<const std::int32_t> prefix, std::span<const std::int32_t> ids) {
  return ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
}

} // namespace troupe::data
