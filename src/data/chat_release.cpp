// Prompt formats that are a release's Jinja template.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/chat.h"
#include "data/chat_template.h"
#include "data/deepseek_v4_chat.h"
#include "data/reply.h"

namespace troupe::data {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kChatmlJinja =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' "
    "}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

Result<ordered_json> parsed(const std::string& text, bool object, const char* what) {
  if (text.empty()) return object ? ordered_json::object() : ordered_json();
  auto json = ordered_json::parse(text, nullptr, false);
  if (object ? json.is_object() : json.is_array()) return json;
  return fail(ErrorCode::kInvalidArgument, std::string(what) + (object ? " is no JSON object" : " is no JSON list"));
}

Result<ordered_json> to_json(std::span<const Message> messages) {
  ordered_json list = ordered_json::array();
  for (const Message& message : messages) {
    TROUPE_TRY(ordered_json more, parsed(message.more, true, "what a message has besides its content"));
    ordered_json one{{"role", message.role}, {"content", message.content}};
    for (auto& [key, value] : more.items()) one[key] = std::move(value);
    list.push_back(std::move(one));
  }
  return list;
}

// The named tokens that templates print.
ordered_json special_tokens(const Tokenizer& tokenizer) {
  ordered_json named = ordered_json::object();
  const auto put = [&](const char* name, std::optional<std::int32_t> id) { named[name] = id ? std::string(tokenizer.bytes(*id)) : ""; };
  put("bos_token", tokenizer.bos());
  put("eos_token", tokenizer.eos());
  put("pad_token", tokenizer.pad());
  return named;
}

void append(Rendered& out, std::span<const std::int32_t> ids, std::uint8_t sampled) {
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  out.sampled.insert(out.sampled.end(), ids.size(), sampled);
}

} // namespace

struct PromptFormat::Release {
  ChatTemplate chat;
  std::string source;
  std::vector<std::string> control;
  ReplyFormat reply;
};

std::string joined_text(std::span<const TextPart> parts) {
  std::string text;
  for (const TextPart& part : parts) text += part.text;
  return text;
}

std::vector<TextPart> drop_text(std::span<const TextPart> parts, std::size_t bytes) {
  std::vector<TextPart> rest;
  for (const TextPart& part : parts) {
    const std::size_t cut = std::min(bytes, part.text.size());
    bytes -= cut;
    if (cut < part.text.size()) rest.push_back({part.text.substr(cut), part.from_input});
  }
  return rest;
}

std::string_view PromptFormat::jinja() const {
  if (template_) return template_->source;
  return turn_start_ >= 0 ? kChatmlJinja : std::string_view();
}

ReplyFormat PromptFormat::reply_format() const { return template_ ? template_->reply : ReplyFormat::kPlain; }

Status PromptFormat::bind_template(const std::string& jinja, const Tokenizer& tokenizer) {
  TROUPE_TRY(auto chat, ChatTemplate::parse(jinja, special_tokens(tokenizer)));
  template_ = std::make_shared<Release>(Release{std::move(chat), jinja, control_names(tokenizer), reply_format_of(jinja)});
  // The last added token of a turn is what ends it. Templates that refuse such a conversation leave that to the model's configuration.
  const std::vector<Message> turn{{"user", "u"}, {"assistant", "a"}};
  const auto before = parts(std::span(turn).first(1), false, {}), whole = parts(turn, false, {});
  if (!before || !whole) return {};
  const std::string shown = joined_text(*before);
  if (!joined_text(*whole).starts_with(shown)) return {};
  const auto ids = tokenizer.encode(drop_text(*whole, shown.size()));
  const auto end = std::find_if(ids.rbegin(), ids.rend(), [&](std::int32_t id) { return tokenizer.is_added(id); });
  if (end != ids.rend()) add_stop_id(*end);
  return {};
}

Result<std::vector<TextPart>> PromptFormat::parts(std::span<const Message> messages, bool generation_prompt, const ChatExtras& extras) const {
  ChatRequest request;
  TROUPE_TRY(request.messages, to_json(messages));
  TROUPE_TRY(request.tools, parsed(extras.tools, false, "the list of tools"));
  TROUPE_TRY(request.variables, parsed(extras.variables, true, "what the template is told"));
  request.generation_prompt = generation_prompt;
  request.now = extras.now;
  if (template_->source == deepseek_v4_template()) {
    TROUPE_TRY(request, deepseek_v4_request(std::move(request)));
  }
  return template_->chat.render(request, template_->control);
}

// How much of a rendered turn the model says: up to the last token that ends one. Only the template writes those.
std::size_t PromptFormat::turn_length(std::span<const std::int32_t> ids) const {
  for (std::size_t n = ids.size(); n > 0; --n)
    if (std::find(stop_ids_.begin(), stop_ids_.end(), ids[n - 1]) != stop_ids_.end()) return n;
  return ids.size();
}

Result<std::vector<Rendered>> PromptFormat::documents(std::span<const Message> messages, const Tokenizer& tokenizer, const ChatExtras& extras) const {
  std::vector<Rendered> documents;
  if (!is_template()) {
    TROUPE_TRY(auto one, render(messages, false, tokenizer));
    documents.push_back(std::move(one));
    return documents;
  }
  std::string text; // of the document under way
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") continue;
    TROUPE_TRY(auto shown, parts(messages.first(i), true, extras));
    TROUPE_TRY(const auto turn, parts(messages.first(i + 1), false, extras));
    const std::string whole = joined_text(turn);
    if (!whole.starts_with(joined_text(shown))) { // the opening promises what this turn does not keep: begin it at the role
      TROUPE_TRY(shown, parts(messages.first(i), false, extras));
      if (!whole.starts_with(joined_text(shown)))
        return fail(ErrorCode::kInvalidArgument, "the chat template writes the messages before turn " + std::to_string(i) + " otherwise once the turn is there; nothing can be learned from that");
    }
    const std::string before = joined_text(shown);
    if (documents.empty() || text.empty() || !before.starts_with(text)) {
      documents.emplace_back();
      text.clear();
    }
    Rendered& document = documents.back();
    append(document, tokenizer.encode(drop_text(shown, text.size())), 0);
    const auto said = tokenizer.encode(drop_text(turn, before.size()));
    const std::size_t length = turn_length(said);
    append(document, std::span(said).first(length), 1);
    text = before + tokenizer.decode(std::span(said).first(length));
  }
  return documents;
}

} // namespace troupe::data
