#include "data/deepseek_v4_chat.h"

#include <algorithm>
#include <map>

namespace troupe::data {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kTemplate =
#include "data/deepseek_v4_template.inc"
    ;

Status arguments_to_objects(ordered_json& message) {
  if (!message.contains("tool_calls") || !message["tool_calls"].is_array()) return {};
  for (ordered_json& call : message["tool_calls"]) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object() || !call["function"].contains("name"))
      return fail(ErrorCode::kInvalidArgument, "a tool call has no function with a name: " + call.dump());
    ordered_json& arguments = call["function"]["arguments"];
    if (arguments.is_string()) arguments = ordered_json::parse(arguments.get<std::string>(), nullptr, false);
    if (arguments.is_object()) continue;
    return fail(ErrorCode::kInvalidArgument, "the arguments of the call to " + call["function"]["name"].dump() + " are no JSON object");
  }
  return {};
}

// Results that follow one another, in the order of the calls that they answer; those of unknown calls last.
void order_results(ordered_json& messages) {
  std::map<std::string, std::size_t> place;
  const auto is_result = [](const ordered_json& m) { return m.value("role", "") == "tool"; };
  for (auto it = messages.begin(); it != messages.end();) {
    if (!is_result(*it)) {
      if (it->contains("tool_calls")) {
        place.clear();
        for (const ordered_json& call : (*it)["tool_calls"]) place.emplace(call.value("id", ""), place.size());
      }
      ++it;
      continue;
    }
    const auto end = std::find_if_not(it, messages.end(), is_result);
    const auto key = [&](const ordered_json& m) {
      const auto found = place.find(m.value("tool_call_id", ""));
      return found == place.end() ? place.size() : found->second;
    };
    std::stable_sort(it, end, [&](const ordered_json& a, const ordered_json& b) { return key(a) < key(b); });
    it = end;
  }
}

} // namespace

std::string_view deepseek_v4_template() { return kTemplate; }

Result<ChatRequest> deepseek_v4_request(ChatRequest request) {
  for (ordered_json& message : request.messages) TROUPE_TRY_STATUS(arguments_to_objects(message));
  order_results(request.messages);
  const ordered_json given = request.variables;
  const std::string effort = given.value("reasoning_effort", "low");
  const bool april = given.value("release", "") == "2026-04";
  static const std::map<std::string, std::string> now{{"low", ""}, {"high", "absolute"}, {"xhigh", "absolute"}, {"max", "beyond"}},
      then{{"low", ""}, {"high", ""}, {"xhigh", ""}, {"max", "absolute"}};
  const auto& scale = april ? then : now;
  const auto found = scale.find(effort);
  if (found == scale.end())
    return fail(ErrorCode::kInvalidArgument, "unknown reasoning_effort '" + effort + "'; known are low, high, xhigh, max");
  request.variables["thinking"] = given.value("thinking", true);
  request.variables["keep_reasoning"] = given.value("keep_reasoning", false);
  request.variables["effort"] = found->second;
  return request;
}

} // namespace troupe::data
