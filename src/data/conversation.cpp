#include "data/conversation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/reply.h"

namespace troupe::data {

bool opens_reasoning(std::string_view prompt) {
  const auto open = prompt.rfind("<think>"), close = prompt.rfind("</think>");
  if (open == std::string_view::npos || (close != std::string_view::npos && close > open)) return false;
  // Nothing but white space may follow, or it is somebody's text.
  return prompt.find_first_not_of(" \t\r\n", open + 7) == std::string_view::npos;
}

std::string messages_to_text(std::span<const Message> messages) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Message& message : messages) list.push_back({message.role, message.content, message.more});
  return list.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<std::vector<Message>> messages_from_text(const std::string& text) {
  std::vector<Message> messages;
  if (text.empty()) return messages;
  const auto list = nlohmann::ordered_json::parse(text, nullptr, false);
  const auto bad = [] { return fail(ErrorCode::kCorrupt, "the messages of a sample's earlier turns cannot be read"); };
  if (!list.is_array()) return bad();
  for (const auto& one : list) {
    if (!one.is_array() || one.size() != 3 || !one[0].is_string() || !one[1].is_string() || !one[2].is_string()) return bad();
    messages.push_back({one[0].get<std::string>(), one[1].get<std::string>(), one[2].get<std::string>()});
  }
  return messages;
}

Conversation::Conversation(const PromptFormat& format, const Tokenizer& tokenizer, ChatExtras extras)
    : format_(&format), tokenizer_(&tokenizer), extras_(std::move(extras)) {}

Status Conversation::begin(std::vector<Message> messages) {
  if (format_->is_template()) {
    TROUPE_TRY(const auto parts, format_->parts(messages, true, extras_));
    text_ = joined_text(parts);
    rendered_.ids = tokenizer_->encode(parts);
    rendered_.sampled.assign(rendered_.ids.size(), 0);
  } else {
    TROUPE_TRY(rendered_, format_->render(messages, true, *tokenizer_));
    rendered_.sampled.assign(rendered_.ids.size(), 0); // said by others, whoever they play
  }
  messages_ = std::move(messages);
  return {};
}

Status Conversation::resume(std::vector<Message> messages, Rendered rendered) {
  if (format_->is_template()) {
    TROUPE_TRY(const auto parts, format_->parts(messages, true, extras_));
    text_ = joined_text(parts);
  }
  messages_ = std::move(messages);
  rendered_ = std::move(rendered);
  return {};
}

bool Conversation::thinking() const { return opens_reasoning(text_); }

Reply Conversation::reply_of(std::span<const std::int32_t> sampled) const {
  const auto tools = extras_.tools.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json::parse(extras_.tools, nullptr, false);
  return parse_reply(format_->reply_format(), tokenizer_->decode(sampled), thinking(), tools);
}

Message Conversation::message_of(std::span<const std::int32_t> sampled) const {
  if (!format_->is_template()) return {"assistant", tokenizer_->decode(sampled, true), {}};
  const Reply reply = reply_of(sampled);
  const bool messages = format_->reply_format() == ReplyFormat::kHarmony || format_->reply_format() == ReplyFormat::kMuse;
  if (messages || !reply.reasoning.empty() || !reply.calls.empty() || !reply.problems.empty()) return to_message(reply);
  // Nothing but text: exactly as it was said, so that the template can show it so.
  const auto& stops = format_->stop_ids();
  if (!sampled.empty() && std::find(stops.begin(), stops.end(), sampled.back()) != stops.end()) sampled = sampled.first(sampled.size() - 1);
  return {"assistant", tokenizer_->decode(sampled), {}};
}

std::vector<std::string> Conversation::problems_of(std::span<const std::int32_t> sampled) const {
  return format_->is_template() ? reply_of(sampled).problems : std::vector<std::string>{};
}

Result<bool> Conversation::go_on(std::span<const std::int32_t> sampled, std::span<const Message> next) {
  std::vector<Message> messages = messages_;
  messages.push_back(message_of(sampled));
  messages.insert(messages.end(), next.begin(), next.end());
  if (!format_->is_template()) {
    format_->continue_with(rendered_, sampled, next, true, *tokenizer_);
    messages_ = std::move(messages);
    return true;
  }
  TROUPE_TRY(const auto parts, format_->parts(messages, true, extras_));
  const std::string before = text_ + tokenizer_->decode(sampled);
  std::string whole = joined_text(parts);
  const bool exact = whole.starts_with(before);
  if (exact) {
    rendered_.ids.insert(rendered_.ids.end(), sampled.begin(), sampled.end());
    rendered_.sampled.resize(rendered_.ids.size(), 1);
    const auto rest = tokenizer_->encode(drop_text(parts, before.size()));
    rendered_.ids.insert(rendered_.ids.end(), rest.begin(), rest.end());
  } else {
    rendered_.ids = tokenizer_->encode(parts);
    rendered_.sampled.clear();
  }
  rendered_.sampled.resize(rendered_.ids.size(), 0);
  text_ = std::move(whole);
  messages_ = std::move(messages);
  return exact;
}

} // namespace troupe::data
