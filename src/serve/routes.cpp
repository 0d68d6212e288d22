// The two routes that generate, and how their answers are written.
#include <algorithm>

#include "data/conversation.h"
#include "serve/answer.h"

namespace troupe::serve {

using nlohmann::ordered_json;

// ---- chat -----------------------------------------------------------------------------------------------------------

class Service::Chat final : public Service::Answer {
 public:
  ordered_json chunk(std::size_t index, const Delta& delta, bool over) override {
    Choice& choice = *choices[index];
    if (delta.empty() && !over && choice.begun) return nullptr;
    ordered_json said = ordered_json::object();
    if (!std::exchange(choice.begun, true)) said["role"] = "assistant", said["content"] = "";
    if (!delta.reasoning.empty()) said["reasoning_content"] = delta.reasoning;
    if (!delta.content.empty()) said["content"] = delta.content;
    if (!delta.calls.empty()) said["tool_calls"] = calls_json(delta.calls, call_prefix(index), true);
    if (!delta.problems.empty()) said["problems"] = delta.problems;
    ordered_json out{{"index", index}, {"delta", std::move(said)}};
    if (logprobs) out["logprobs"] = chat_logprobs(std::exchange(choice.unsent, {}), *tokenizer);
    out["finish_reason"] = over ? ordered_json(reason(choice)) : ordered_json();
    return out;
  }

  ordered_json whole(std::size_t index) override {
    Choice& choice = *choices[index];
    const Delta& said = choice.text.said();
    ordered_json message{{"role", "assistant"}, {"content", said.content}};
    if (said.content.empty() && !said.calls.empty()) message["content"] = nullptr;
    if (!said.reasoning.empty()) message["reasoning_content"] = said.reasoning;
    if (!said.calls.empty()) message["tool_calls"] = calls_json(said.calls, call_prefix(index), false);
    if (!said.problems.empty()) message["problems"] = said.problems;
    ordered_json out{{"index", index}, {"message", std::move(message)}, {"logprobs", nullptr}, {"finish_reason", reason(choice)}};
    if (logprobs) out["logprobs"] = chat_logprobs(choice.unsent, *tokenizer);
    return out;
  }

 private:
  static std::string_view reason(const Choice& choice) { return finish_reason(choice.generation->completion().finish, !choice.text.said().calls.empty()); }
  [[nodiscard]] std::string call_prefix(std::size_t index) const { return id.substr(id.find('-') + 1) + "_" + std::to_string(index); }
};

void Service::chat(const httplib::Request& request, httplib::Response& response) {
  const auto call = parse_chat_call(request.body, limits());
  if (!call) return send(response, call.error());
  if (!check(call->model, response)) return;
  data::Conversation conversation(model_.format, model_.tokenizer, call->extras);
  if (const auto begun = conversation.begin(call->messages); !begun) {
    ApiError error = to_api_error(begun.error());
    if (begun.error().code != ErrorCode::kInternal) error.status = 400, error.type = "invalid_request_error", error.param = "messages";
    return send(response, error);
  }
  const auto& prompt = conversation.rendered().ids;
  auto generations = generator_.submit(requests_of(*call, prompt, 1 << 24));
  if (!generations) return send(response, to_api_error(generations.error()));
  ++open_;
  auto made = std::make_shared<Chat>();
  made->id = "chatcmpl-" + std::to_string(next_++);
  made->object = "chat.completion", made->chunk_object = "chat.completion.chunk";
  ReplyStream::Options reply;
  if (model_.format.is_template()) reply.format = model_.format.reply_format();
  reply.thinking = conversation.thinking();
  if (!call->extras.tools.empty()) reply.tools = ordered_json::parse(call->extras.tools);
  reply.stops = call->sampling.stop_strings;
  for (auto& generation : *generations) made->choices.push_back(std::make_unique<Choice>(std::move(generation), model_.tokenizer, reply));
  made->tokenizer = &model_.tokenizer, made->model = options_.name, made->created = std::time(nullptr);
  made->stream = call->stream, made->include_usage = call->include_usage, made->logprobs = call->logprobs;
  made->usage.prompt = static_cast<std::int64_t>(prompt.size());
  answer(std::move(made), response);
}

// ---- completions ----------------------------------------------------------------------------------------------------

class Service::Completions final : public Service::Answer {
 public:
  ordered_json chunk(std::size_t index, const Delta& delta, bool over) override {
    Choice& choice = *choices[index];
    if (delta.empty() && !over) return nullptr;
    return written(index, delta.content, over ? ordered_json(finish_reason(choice.generation->completion().finish, false)) : ordered_json());
  }
  ordered_json whole(std::size_t index) override {
    Choice& choice = *choices[index];
    return written(index, choice.text.said().content, finish_reason(choice.generation->completion().finish, false));
  }

 private:
  ordered_json written(std::size_t index, const std::string& text, const ordered_json& reason) {
    Choice& choice = *choices[index];
    ordered_json out{{"index", index}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", reason}};
    if (logprobs) out["logprobs"] = completion_logprobs(std::exchange(choice.unsent, {}), *tokenizer, choice.offset);
    choice.offset += text.size();
    return out;
  }
};

void Service::completions(const httplib::Request& request, httplib::Response& response) {
  const auto call = parse_completion_call(request.body, limits());
  if (!call) return send(response, call.error());
  if (!check(call->model, response)) return;
  auto made = std::make_shared<Completions>();
  std::vector<generate::Request> all;
  for (const auto& prompt : call->prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    const auto ids = text != nullptr ? model_.tokenizer.with_template(model_.tokenizer.encode(*text, data::Special::kPlain)) : std::get<std::vector<std::int32_t>>(prompt);
    made->usage.prompt += static_cast<std::int64_t>(ids.size());
    for (generate::Request& one : requests_of(*call, ids, 16)) all.push_back(std::move(one));
  }
  auto generations = generator_.submit(std::move(all));
  if (!generations) return send(response, to_api_error(generations.error()));
  ++open_;
  made->id = "cmpl-" + std::to_string(next_++);
  made->object = made->chunk_object = "text_completion";
  ReplyStream::Options reply;
  reply.stops = call->sampling.stop_strings;
  for (auto& generation : *generations) made->choices.push_back(std::make_unique<Choice>(std::move(generation), model_.tokenizer, reply));
  made->tokenizer = &model_.tokenizer, made->model = options_.name, made->created = std::time(nullptr);
  made->stream = call->stream, made->include_usage = call->include_usage, made->logprobs = call->logprobs;
  answer(std::move(made), response);
}

} // namespace troupe::serve
