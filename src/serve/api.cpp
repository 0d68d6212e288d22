#include "serve/api.h"

namespace troupe::serve {

using nlohmann::ordered_json;

std::string dump(const ordered_json& json) { return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

ApiError to_api_error(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      return {400, error.message, "invalid_request_error", {}, {}};
    case ErrorCode::kResourceExhausted:
      return {429, error.message, "rate_limit_error", {}, "queue_full"};
    case ErrorCode::kDraining:
    case ErrorCode::kUnavailable:
      return {503, error.message, "server_error", {}, "unavailable"};
    default:
      return {500, error.message, "server_error", {}, {}};
  }
}

std::string to_json_text(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); };
  return dump({{"error", {{"message", error.message}, {"type", error.type}, {"param", or_null(error.param)}, {"code", or_null(error.code)}}}});
}

ordered_json to_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt}, {"completion_tokens", usage.completion}, {"total_tokens", usage.prompt + usage.completion}};
}

std::string_view finish_reason(generate::Finish finish, bool calls) {
  if (finish == generate::Finish::kLength) return "length";
  return calls ? "tool_calls" : "stop";
}

ordered_json calls_json(const std::vector<data::ToolCall>& calls, const std::string& prefix, bool indexed) {
  ordered_json list = ordered_json::array();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    ordered_json one = ordered_json::object();
    if (indexed) one["index"] = i;
    one["id"] = "call_" + prefix + "_" + std::to_string(i);
    one["type"] = "function";
    one["function"] = {{"name", calls[i].name}, {"arguments", dump(calls[i].arguments)}};
    list.push_back(std::move(one));
  }
  return list;
}

namespace {

std::string text_of(std::int32_t id, const data::Tokenizer& tokenizer) { return tokenizer.decode(std::span(&id, 1)); }

ordered_json chat_entry(const generate::Alternative& one, const data::Tokenizer& tokenizer) {
  ordered_json bytes = ordered_json::array();
  for (const char c : tokenizer.bytes(one.id)) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text_of(one.id, tokenizer)}, {"logprob", one.logprob}, {"bytes", std::move(bytes)}};
}

} // namespace

ordered_json chat_logprobs(const std::vector<Token>& tokens, const data::Tokenizer& tokenizer) {
  ordered_json content = ordered_json::array();
  for (const Token& token : tokens) {
    if (token.alternatives.empty()) continue;
    ordered_json entry = chat_entry(token.alternatives.front(), tokenizer);
    entry["top_logprobs"] = ordered_json::array();
    for (std::size_t i = 1; i < token.alternatives.size(); ++i) entry["top_logprobs"].push_back(chat_entry(token.alternatives[i], tokenizer));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

ordered_json completion_logprobs(const std::vector<Token>& tokens, const data::Tokenizer& tokenizer, std::size_t offset) {
  ordered_json texts = ordered_json::array(), values = ordered_json::array(), best = ordered_json::array(), offsets = ordered_json::array();
  for (const Token& token : tokens) {
    if (token.alternatives.empty()) continue;
    const std::string text = text_of(token.id, tokenizer);
    texts.push_back(text);
    values.push_back(token.alternatives.front().logprob);
    ordered_json most = ordered_json::object();
    for (std::size_t i = 1; i < token.alternatives.size(); ++i) most[text_of(token.alternatives[i].id, tokenizer)] = token.alternatives[i].logprob;
    best.push_back(std::move(most));
    offsets.push_back(offset);
    offset += text.size();
  }
  return {{"tokens", std::move(texts)}, {"token_logprobs", std::move(values)}, {"top_logprobs", std::move(best)}, {"text_offset", std::move(offsets)}};
}

} // namespace troupe::serve
