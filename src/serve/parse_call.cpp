// Bodies of requests to calls.
#include <array>

#include "serve/call_reader.h"

namespace troupe::serve {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t kMessagesMax = 4096, kToolsMax = 256;
constexpr int kAlternativesMax = 20;

// A string, or a list of text parts.
std::optional<std::string> content_of(const ordered_json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const ordered_json& part : content) {
    if (!part.is_object() || part.value("type", ordered_json()) != "text" || !part.contains("text") || !part["text"].is_string()) return std::nullopt;
    text += part["text"].get<std::string>();
  }
  return text;
}

bool is_call(const ordered_json& call) {
  if (!call.is_object() || !call.contains("function")) return false;
  const ordered_json& function = call["function"];
  return function.is_object() && function.contains("name") && function["name"].is_string() && function.contains("arguments") && (function["arguments"].is_string() || function["arguments"].is_object());
}

// Arguments as the object that templates expect.
std::string further_fields(const ordered_json& message, std::string& why) {
  ordered_json more = ordered_json::object();
  for (const char* key : {"name", "tool_call_id", "reasoning_content"}) {
    const ordered_json value = message.value(key, ordered_json());
    if (value.is_string()) more[key] = value;
    else if (!value.is_null()) why = std::string(key) + " must be a string";
  }
  const ordered_json calls = message.value("tool_calls", ordered_json());
  if (calls.is_null()) return more.empty() ? std::string() : dump(more);
  if (!calls.is_array()) return why = "tool_calls must be a list", std::string();
  for (ordered_json call : calls) {
    if (!is_call(call)) return why = "tool_calls must hold {\"function\": {\"name\", \"arguments\"}}", std::string();
    ordered_json& arguments = call["function"]["arguments"];
    if (arguments.is_string()) arguments = ordered_json::parse(arguments.get<std::string>(), nullptr, false);
    if (!arguments.is_object()) return why = "the arguments of a tool call are no JSON object", std::string();
    more["tool_calls"].push_back(std::move(call));
  }
  return dump(more);
}

void read_message(CallReader& reader, const ordered_json& message, std::size_t index, std::vector<data::Message>& out) {
  const std::string where = "messages[" + std::to_string(index) + "]";
  if (!message.is_object()) return reader.problem("messages", where + " must be an object");
  static constexpr std::array<std::string_view, 5> kRoles{"system", "developer", "user", "assistant", "tool"};
  const ordered_json role = message.value("role", ordered_json());
  if (!role.is_string() || std::find(kRoles.begin(), kRoles.end(), role.get<std::string>()) == kRoles.end())
    return reader.problem("messages", where + ".role must be system, developer, user, assistant or tool");
  data::Message one;
  one.role = role == "developer" ? "system" : role.get<std::string>();
  std::string why;
  one.more = further_fields(message, why);
  if (!why.empty()) return reader.problem("messages", where + ": " + why);
  const ordered_json content = message.value("content", ordered_json());
  const bool may_lack = role == "assistant" && message.contains("tool_calls");
  if (const auto text = content_of(content)) one.content = *text;
  else if (!content.is_null() || !may_lack) return reader.problem("messages", where + ".content must be a string or a list of {\"type\": \"text\", \"text\"}");
  out.push_back(std::move(one));
}

void read_messages(CallReader& reader, ChatCall& call) {
  const ordered_json& messages = reader.get("messages");
  if (!messages.is_array() || messages.empty() || messages.size() > kMessagesMax)
    return reader.problem("messages", "messages must be a list of 1 to " + std::to_string(kMessagesMax) + " messages");
  for (std::size_t i = 0; i < messages.size(); ++i) read_message(reader, messages[i], i, call.messages);
}

void read_tools(CallReader& reader, ChatCall& call) {
  const ordered_json& tools = reader.get("tools");
  if (!tools.is_null()) {
    bool good = tools.is_array() && tools.size() <= kToolsMax;
    for (const ordered_json& tool : good ? tools : ordered_json::array())
      good = good && tool.is_object() && tool.value("type", ordered_json()) == "function" && tool.contains("function") && tool["function"].is_object() &&
             tool["function"].value("name", ordered_json()).is_string();
    if (!good) reader.problem("tools", "tools must be a list of up to " + std::to_string(kToolsMax) + " {\"type\": \"function\", \"function\": {\"name\", ...}}");
    else if (!tools.empty()) call.extras.tools = dump(tools);
  }
  const ordered_json& choice = reader.get("tool_choice");
  if (choice == "none") call.extras.tools.clear();
  else if (!choice.is_null() && choice != "auto") reader.problem("tool_choice", "tool_choice may be \"auto\" or \"none\": nothing here can make a model call a tool");
  bool parallel = true;
  reader.boolean("parallel_tool_calls", parallel);
  if (!parallel && !call.extras.tools.empty()) reader.problem("parallel_tool_calls", "parallel_tool_calls cannot be switched off: nothing here can keep a model from calling twice");
}

void read_variables(CallReader& reader, ChatCall& call) {
  ordered_json variables = reader.get("chat_template_kwargs");
  if (variables.is_null()) variables = ordered_json::object();
  if (!variables.is_object()) return reader.problem("chat_template_kwargs", "chat_template_kwargs must be an object");
  std::string effort;
  reader.string("reasoning_effort", effort);
  if (!effort.empty()) variables["reasoning_effort"] = effort;
  if (!variables.empty()) call.extras.variables = dump(variables);
}

bool read_ids(const ordered_json& list, std::vector<std::int32_t>& out, int vocabulary) {
  for (const ordered_json& id : list) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= vocabulary) return false;
    out.push_back(id.get<std::int32_t>());
  }
  return !list.empty();
}

void read_prompts(CallReader& reader, const CallLimits& limits, CompletionCall& call) {
  const ordered_json& prompt = reader.get("prompt");
  const auto refuse = [&] { reader.problem("prompt", "prompt must be a string, a list of token ids below " + std::to_string(limits.vocabulary) + ", or a list of up to " + std::to_string(limits.completions_max) + " of them, none empty"); };
  const bool one = prompt.is_string() || (prompt.is_array() && !prompt.empty() && prompt[0].is_number());
  const ordered_json list = one ? ordered_json::array({prompt}) : prompt;
  if (!list.is_array() || list.empty() || list.size() > static_cast<std::size_t>(limits.completions_max)) return refuse();
  for (const ordered_json& entry : list) {
    std::vector<std::int32_t> ids;
    if (entry.is_string() && !entry.get_ref<const std::string&>().empty()) call.prompts.emplace_back(entry.get<std::string>());
    else if (entry.is_array() && read_ids(entry, ids, limits.vocabulary)) call.prompts.emplace_back(std::move(ids));
    else return refuse();
  }
}

} // namespace

tl::expected<ChatCall, ApiError> parse_chat_call(std::string_view body, const CallLimits& limits) {
  CallReader reader(body);
  if (!reader.ok()) return tl::unexpected(reader.error());
  ChatCall call;
  read_common(reader, limits, call);
  read_messages(reader, call);
  read_tools(reader, call);
  read_variables(reader, call);
  reader.boolean("logprobs", call.logprobs);
  int alternatives = 0;
  reader.integer("top_logprobs", alternatives, 0, kAlternativesMax);
  if (alternatives > 0 && !call.logprobs) reader.problem("top_logprobs", "top_logprobs needs logprobs to be true");
  call.sampling.alternatives = call.logprobs ? alternatives : -1;
  const ordered_json& format = reader.get("response_format");
  if (!format.is_null() && format != ordered_json{{"type", "text"}}) reader.problem("response_format", "response_format may only be {\"type\": \"text\"}");
  const ordered_json& modalities = reader.get("modalities");
  if (!modalities.is_null() && modalities != ordered_json::array({"text"})) reader.problem("modalities", "modalities may only be [\"text\"]");
  reader.refuse_unknown();
  if (reader.failed()) return tl::unexpected(reader.error());
  return call;
}

tl::expected<CompletionCall, ApiError> parse_completion_call(std::string_view body, const CallLimits& limits) {
  CallReader reader(body);
  if (!reader.ok()) return tl::unexpected(reader.error());
  CompletionCall call;
  read_common(reader, limits, call);
  read_prompts(reader, limits, call);
  std::optional<std::int64_t> alternatives;
  reader.integer("logprobs", alternatives, 0, kAlternativesMax);
  call.logprobs = alternatives.has_value();
  if (alternatives) call.sampling.alternatives = static_cast<int>(*alternatives);
  reader.refuse_unless("echo", false);
  reader.refuse_unless("best_of", call.completions);
  reader.refuse_unless("suffix", "");
  reader.refuse_unknown();
  if (call.prompts.size() * static_cast<std::size_t>(call.completions) > static_cast<std::size_t>(limits.completions_max))
    reader.problem("n", "n times the prompts are more than the " + std::to_string(limits.completions_max) + " completions of one request");
  if (reader.failed()) return tl::unexpected(reader.error());
  return call;
}

} // namespace troupe::serve
