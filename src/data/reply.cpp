#include "data/reply.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace troupe::data {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::pair<std::string_view, ReplyFormat>, 8> kFormats{{{"plain", ReplyFormat::kPlain},
                                                                            {"qwen3", ReplyFormat::kQwen3},
                                                                            {"qwen3_5", ReplyFormat::kQwen3_5},
                                                                            {"llama3", ReplyFormat::kLlama3},
                                                                            {"gpt_oss", ReplyFormat::kHarmony},
                                                                            {"deepseek_v3", ReplyFormat::kDeepSeekV3},
                                                                            {"deepseek_v4", ReplyFormat::kDeepSeekV4},
                                                                            {"muse_spark", ReplyFormat::kMuse}}};

constexpr std::string_view kBlank = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::string_view without_line_ends(std::string_view text) { // one at either side
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// Reads on through a text, from one mark to the next.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : rest_(text) {}
  [[nodiscard]] std::string_view rest() const { return rest_; }
  // What is before the mark; goes on behind it. Nothing when it does not come.
  std::optional<std::string_view> until(std::string_view mark) {
    const auto at = rest_.find(mark);
    if (at == std::string_view::npos) return std::nullopt;
    const auto before = rest_.substr(0, at);
    rest_.remove_prefix(at + mark.size());
    return before;
  }
  bool skip(std::string_view mark) { // after white space
    const auto there = rest_.find_first_not_of(kBlank);
    if (there == std::string_view::npos || !rest_.substr(there).starts_with(mark)) return false;
    rest_.remove_prefix(there + mark.size());
    return true;
  }

 private:
  std::string_view rest_;
};

void problem(Reply& reply, std::string text) { reply.problems.push_back(std::move(text)); }

void add_call(Reply& reply, std::string_view name, ordered_json arguments) {
  if (name.empty()) return problem(reply, "a tool call has no name");
  if (arguments.is_string()) { // JSON in a string, as some write it; an empty one means none
    const std::string text = arguments.get<std::string>();
    arguments = trimmed(text).empty() ? ordered_json::object() : ordered_json::parse(text, nullptr, false);
  }
  if (arguments.is_null()) arguments = ordered_json::object();
  if (!arguments.is_object()) return problem(reply, "the arguments of the call to " + std::string(name) + " are no JSON object");
  ToolCall call{std::string(name), std::move(arguments)};
  if (reply.calls.empty() || !(reply.calls.back() == call)) reply.calls.push_back(std::move(call));
}

// {"name": ..., "arguments" or "parameters": ...}, as it was written and as it was parsed.
void add_json_call(Reply& reply, std::string_view text, const ordered_json& call) {
  if (!call.is_object() || !call.contains("name") || !call["name"].is_string())
    return problem(reply, "a tool call is no valid JSON: " + std::string(trimmed(text).substr(0, 200)));
  add_call(reply, call["name"].get<std::string>(), call.contains("arguments") ? call["arguments"] : call.value("parameters", ordered_json::object()));
}

// The reasoning in front; `opened`: the prompt has written the opening mark.
std::string_view take_reasoning(Reply& reply, std::string_view text, bool opened) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  const auto start = text.find_first_not_of(kBlank);
  if (start != std::string_view::npos && text.substr(start).starts_with(kOpen)) {
    text.remove_prefix(start + kOpen.size());
    opened = true;
  }
  const auto close = text.find(kClose);
  if (close == std::string_view::npos) {
    if (!opened) return text;
    reply.reasoning = trimmed(text); // cut off before the answer
    return {};
  }
  reply.reasoning = trimmed(text.substr(0, close));
  return text.substr(close + kClose.size());
}

// Every block between two marks is a call's; the text outside them is the answer.
template <class Take>
void take_blocks(Reply& reply, std::string_view text, std::string_view open, std::string_view close, Take take) {
  std::string content;
  Cursor cursor(text);
  while (const auto before = cursor.until(open)) {
    content += *before;
    const auto block = cursor.until(close);
    if (!block) {
      problem(reply, "the last tool call is cut off: " + std::string(trimmed(cursor.rest()).substr(0, 200)));
      cursor = Cursor({});
      break;
    }
    take(*block);
  }
  content += cursor.rest();
  reply.content = trimmed(content);
}

// ---- calls written as named parameters ------------------------------------------------------------------------------

struct Tags {
  std::string_view invoke, name_end, invoke_close, parameter, key_end, parameter_close;
};
constexpr Tags kFunctionTags{"<function=", ">", "</function>", "<parameter=", ">", "</parameter>"};
constexpr Tags kDsmlTags{"<｜DSML｜invoke name=\"", "\">", "</｜DSML｜invoke>", "<｜DSML｜parameter name=\"", "\"", "</｜DSML｜parameter>"};
constexpr Tags kAtemTags{"<atem:invoke name=\"", "\">", "</atem:invoke>", "<atem:parameter name=\"", "\">", "</atem:parameter>"};

// Whether the tool names the parameter's type as a string; nothing when it names none.
std::optional<bool> is_string_parameter(const ordered_json& tools, std::string_view tool, std::string_view key) {
  if (!tools.is_array()) return std::nullopt;
  for (const ordered_json& entry : tools) {
    const ordered_json& function = entry.contains("function") ? entry["function"] : entry;
    if (function.value("name", "") != tool) continue;
    const auto type = ordered_json::json_pointer("/parameters/properties/" + std::string(key) + "/type");
    if (std::string(key).find_first_of("/~") != std::string::npos || !function.contains(type)) return std::nullopt;
    return function[type] == "string";
  }
  return std::nullopt;
}

ordered_json value_of(std::string_view text, const ordered_json& tools, std::string_view tool, std::string_view key) {
  const std::optional<bool> is_string = is_string_parameter(tools, tool, key);
  if (is_string.value_or(false)) return std::string(text);
  const auto word = trimmed(text);
  if (word == "True" || word == "False") return word == "True";
  if (word == "None") return nullptr;
  ordered_json value = ordered_json::parse(word, nullptr, false);
  if (value.is_discarded() || (!is_string && value.is_string())) return std::string(text);
  return value;
}

void take_invocations(Reply& reply, std::string_view block, const Tags& tags, const ordered_json& tools) {
  Cursor cursor(block);
  while (cursor.skip(tags.invoke)) {
    const auto name = cursor.until(tags.name_end);
    if (!name) return problem(reply, "a tool call is cut off in its name");
    ordered_json arguments = ordered_json::object();
    while (cursor.skip(tags.parameter)) {
      const auto key = cursor.until(tags.key_end);
      std::optional<std::string_view> kind;
      if (key && tags.parameter == kDsmlTags.parameter) kind = cursor.until(">");
      const auto value = key ? cursor.until(tags.parameter_close) : std::nullopt;
      if (!value) return problem(reply, "the call to " + std::string(*name) + " is cut off");
      if (arguments.contains(*key)) return problem(reply, "the call to " + std::string(*name) + " gives " + std::string(*key) + " twice");
      if (!kind) {
        arguments[std::string(*key)] = value_of(tags.parameter == kFunctionTags.parameter ? without_line_ends(*value) : *value, tools, *name, *key);
      } else if (kind->find("\"true\"") != std::string_view::npos) {
        arguments[std::string(*key)] = std::string(*value);
      } else {
        ordered_json parsed = ordered_json::parse(*value, nullptr, false);
        if (parsed.is_discarded()) return problem(reply, "the value of " + std::string(*key) + " in the call to " + std::string(*name) + " is no JSON");
        arguments[std::string(*key)] = std::move(parsed);
      }
    }
    if (!cursor.skip(tags.invoke_close)) return problem(reply, "the call to " + std::string(*name) + " is malformed or cut off");
    add_call(reply, *name, std::move(arguments));
  }
  if (!trimmed(cursor.rest()).empty()) problem(reply, "a tool call is malformed: " + std::string(trimmed(cursor.rest()).substr(0, 200)));
}

// ---- families -------------------------------------------------------------------------------------------------------

void take_deepseek_v3(Reply& reply, std::string_view block) {
  take_blocks(reply, block, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", [&](std::string_view call) {
    Cursor cursor(call);
    const auto kind = cursor.until("<｜tool▁sep｜>"), name = kind ? cursor.until("```json") : std::nullopt;
    const auto text = name ? cursor.until("```") : std::nullopt;
    if (!text) return problem(reply, "a tool call is malformed: " + std::string(trimmed(call).substr(0, 200)));
    const ordered_json arguments = trimmed(*text).empty() ? ordered_json::object() : ordered_json::parse(trimmed(*text), nullptr, false);
    if (arguments.is_discarded()) return problem(reply, "the arguments of the call to " + std::string(trimmed(*name)) + " are no JSON object");
    add_call(reply, trimmed(*name), arguments);
  });
}

void take_llama3(Reply& reply, std::string_view text) {
  constexpr std::string_view kTag = "<|python_tag|>";
  auto body = trimmed(text);
  const bool tagged = body.starts_with(kTag);
  if (tagged) body = trimmed(body.substr(kTag.size()));
  const ordered_json parsed = ordered_json::parse(body, nullptr, false);
  const bool call = parsed.is_object() && parsed.contains("name") && (parsed.contains("parameters") || parsed.contains("arguments"));
  if (call) return add_json_call(reply, body, parsed);
  if (tagged || (parsed.is_discarded() && body.starts_with("{\"name\""))) return problem(reply, "a tool call is no valid JSON: " + std::string(body.substr(0, 200)));
  reply.content = std::string(body);
}

struct Segment {
  std::string_view header, body;
  bool ended = false;
};

// `<|start|>HEADER<|message|>BODY<END>` again and again; the first header may have lost its start to the prompt.
std::vector<Segment> segments(std::string_view text, std::span<const std::string_view> ends) {
  std::vector<Segment> out;
  while (!trimmed(text).empty()) {
    constexpr std::string_view kStart = "<|start|>", kMessage = "<|message|>";
    if (const auto start = text.find(kStart); start != std::string_view::npos && trimmed(text.substr(0, start)).empty()) text.remove_prefix(start + kStart.size());
    const auto message = text.find(kMessage);
    if (message == std::string_view::npos) return out.push_back({text, {}, false}), out;
    Segment segment{text.substr(0, message), text.substr(message + kMessage.size()), false};
    std::size_t first = std::string_view::npos, length = 0;
    for (const std::string_view end : ends)
      if (const auto at = segment.body.find(end); at < first) first = at, length = end.size();
    segment.ended = first != std::string_view::npos;
    text = segment.ended ? segment.body.substr(first + length) : std::string_view();
    segment.body = segment.body.substr(0, first);
    out.push_back(segment);
  }
  return out;
}

std::string_view recipient(std::string_view header) {
  const auto at = header.find("to=");
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + 3);
  return header.substr(0, header.find_first_of(" \n<"));
}

void take_harmony(Reply& reply, std::string_view text) {
  static constexpr std::array<std::string_view, 3> kEnds{"<|end|>", "<|return|>", "<|call|>"};
  for (const Segment& segment : segments(text, kEnds)) {
    const auto to = recipient(segment.header);
    if (!to.empty()) {
      constexpr std::string_view kFunctions = "functions.";
      const std::string name(to.starts_with(kFunctions) ? to.substr(kFunctions.size()) : to);
      const ordered_json arguments = trimmed(segment.body).empty() && segment.ended ? ordered_json::object() : ordered_json::parse(trimmed(segment.body), nullptr, false);
      if (arguments.is_object()) add_call(reply, name, arguments);
      else problem(reply, "the call to " + name + (segment.ended ? " holds no JSON object" : " is cut off"));
    } else if (segment.header.find("analysis") != std::string_view::npos) {
      reply.reasoning += segment.body;
    } else {
      reply.content += segment.body; // final, or commentary for the user
    }
  }
}

void take_muse(Reply& reply, std::string_view text, const ordered_json& tools) {
  static constexpr std::array<std::string_view, 2> kEnds{"<|eom|>", "<|eot|>"};
  for (const Segment& segment : segments(text, kEnds)) {
    const auto to = recipient(segment.header);
    if (to == "self") {
      reply.reasoning += segment.body;
    } else if (const auto calls = segment.body.find("<atem:function_calls>"); calls != std::string_view::npos) {
      const std::string before = reply.content + std::string(segment.body.substr(0, calls));
      take_blocks(reply, segment.body.substr(calls), "<atem:function_calls>", "</atem:function_calls>", [&](std::string_view block) { take_invocations(reply, block, kAtemTags, tools); });
      reply.content = std::string(trimmed(before)) + reply.content;
    } else {
      reply.content += segment.body;
    }
  }
}

std::string_view without_end_of_turn(std::string_view text) {
  for (const std::string_view end : {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<｜end▁of▁sentence｜>"})
    if (text.ends_with(end)) return text.substr(0, text.size() - end.size());
  return text;
}

} // namespace

Result<ReplyFormat> parse_reply_format(std::string_view name) {
  std::string known;
  for (const auto& [text, format] : kFormats) {
    if (text == name) return format;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  return fail(ErrorCode::kNotFound, "unknown reply format '" + std::string(name) + "'; known are " + known);
}

ReplyFormat reply_format_of(std::string_view jinja) {
  // The most telling marks first: later formats quote those of earlier ones.
  static constexpr std::array<std::pair<std::string_view, ReplyFormat>, 7> kMarks{{{"<atem:", ReplyFormat::kMuse},
                                                                                   {"｜DSML｜", ReplyFormat::kDeepSeekV4},
                                                                                   {"<｜tool▁calls▁begin｜>", ReplyFormat::kDeepSeekV3},
                                                                                   {"<|channel|>", ReplyFormat::kHarmony},
                                                                                   {"<function=", ReplyFormat::kQwen3_5},
                                                                                   {"<tool_call>", ReplyFormat::kQwen3},
                                                                                   {"<|eot_id|>", ReplyFormat::kLlama3}}};
  for (const auto& [mark, format] : kMarks)
    if (jinja.find(mark) != std::string_view::npos) return format;
  return ReplyFormat::kPlain;
}

Message to_message(const Reply& reply) {
  Message message{"assistant", reply.content, {}};
  ordered_json more = ordered_json::object();
  if (!reply.reasoning.empty()) more["reasoning_content"] = reply.reasoning;
  for (const ToolCall& call : reply.calls)
    more["tool_calls"].push_back({{"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  if (!more.empty()) message.more = more.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  return message;
}

Reply parse_reply(ReplyFormat format, std::string_view text, bool thinking, const ordered_json& tools) {
  Reply reply;
  if (format == ReplyFormat::kHarmony) return take_harmony(reply, text), reply;
  if (format == ReplyFormat::kMuse) return take_muse(reply, text, tools), reply;
  const std::string_view said = take_reasoning(reply, without_end_of_turn(text), thinking);
  switch (format) {
    case ReplyFormat::kQwen3: take_blocks(reply, said, "<tool_call>", "</tool_call>", [&](std::string_view block) { add_json_call(reply, block, ordered_json::parse(trimmed(block), nullptr, false)); }); break;
    case ReplyFormat::kQwen3_5:
      take_blocks(reply, said, "<tool_call>", "</tool_call>", [&](std::string_view block) { take_invocations(reply, block, kFunctionTags, tools); });
      break;
    case ReplyFormat::kDeepSeekV4:
      take_blocks(reply, said, "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", [&](std::string_view block) { take_invocations(reply, block, kDsmlTags, tools); });
      break;
    case ReplyFormat::kDeepSeekV3:
      take_blocks(reply, said, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", [&](std::string_view block) { take_deepseek_v3(reply, block); });
      break;
    case ReplyFormat::kLlama3: take_llama3(reply, said); break;
    default: reply.content = trimmed(said);
  }
  return reply;
}

} // namespace troupe::data
