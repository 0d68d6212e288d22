// The wire format without a network.
#include "serve/api.h"

#include <gmock/gmock.h>

namespace troupe::serve {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

const CallLimits kLimits{4, 100};

ChatCall chat(const char* body) {
  auto call = parse_chat_call(body, kLimits);
  EXPECT_TRUE(call) << (call ? "" : call.error().message);
  return call ? *call : ChatCall{};
}

TEST(Api, FieldsBecomeTheCall) {
  const auto call = chat(R"({"model": "m", "messages": [{"role": "developer", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    "n": 2, "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "top_k": 5, "seed": -1, "stop": "end", "logprobs": true, "top_logprobs": 3, "stream": true,
    "stream_options": {"include_usage": true}, "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false}, "user": "u", "frequency_penalty": 0, "logit_bias": {}})");
  EXPECT_EQ(call.messages, (std::vector<data::Message>{{"system", "be", {}}, {"user", "ab", {}}}));
  EXPECT_EQ(call.completions, 2);
  EXPECT_EQ(call.max_tokens, 7);
  EXPECT_EQ(call.seed, ~std::uint64_t{0});
  EXPECT_EQ(call.sampling.temperature, 0.5);
  EXPECT_EQ(call.sampling.top_p, 0.9);
  EXPECT_EQ(call.sampling.top_k, 5);
  EXPECT_EQ(call.sampling.stop_strings, std::vector<std::string>{"end"});
  EXPECT_EQ(call.sampling.alternatives, 3);
  EXPECT_TRUE(call.stream && call.include_usage && call.logprobs);
  EXPECT_EQ(ordered_json::parse(call.extras.variables), (ordered_json{{"enable_thinking", false}, {"reasoning_effort", "high"}}));
}

TEST(Api, WhatIsLeftOutOrNullHasItsDefault) {
  const auto call = chat(R"({"messages": [{"role": "user", "content": "x"}], "temperature": null, "stop": null, "tools": null, "max_tokens": null})");
  EXPECT_EQ(call.sampling.temperature, 1);
  EXPECT_FALSE(call.max_tokens || call.seed || call.stream || call.logprobs);
  EXPECT_EQ(call.sampling.alternatives, -1);
  EXPECT_EQ(call.extras.tools, "");
  EXPECT_EQ(chat(R"({"messages": [{"role": "user", "content": "x"}], "top_p": 0})").sampling.top_k, 1) << "only the most likely";
  EXPECT_EQ(chat(R"({"messages": [{"role": "user", "content": "x"}], "temperature": 1e-9})").sampling.temperature, 0);
}

TEST(Api, ToolsAndTheirCallsKeepTheOrderOfTheirKeys) {
  const char* body = R"({"messages": [{"role": "user", "content": "x"},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "r"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}}]})";
  const auto call = chat(body);
  EXPECT_THAT(call.extras.tools, HasSubstr(R"("z":{},"a":{})"));
  EXPECT_THAT(call.messages[1].more, HasSubstr(R"("arguments":{"z":1,"a":2})"));
  EXPECT_THAT(call.messages[2].more, HasSubstr("tool_call_id"));
  std::string none = body;
  none.insert(none.size() - 1, R"(, "tool_choice": "none")");
  EXPECT_EQ(chat(none.c_str()).extras.tools, "");
}

TEST(Api, ACallThatIsNoJsonIsNamed) {
  const auto call = parse_chat_call(R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": "}}]}]})", kLimits);
  ASSERT_FALSE(call);
  EXPECT_EQ(call.error().status, 400);
  EXPECT_THAT(call.error().message, HasSubstr("messages[0]: the arguments of a tool call are no JSON object"));
  EXPECT_EQ(call.error().param, "messages");
}

TEST(Api, PromptsAreTextsOrIds) {
  const auto call = parse_completion_call(R"({"prompt": ["ab", [1, 2], "c"], "logprobs": 0})", kLimits);
  ASSERT_TRUE(call) << call.error().message;
  EXPECT_EQ(call->prompts.size(), 3u);
  EXPECT_EQ(std::get<std::vector<std::int32_t>>(call->prompts[1]), (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(call->sampling.alternatives, 0);
  EXPECT_EQ(parse_completion_call(R"({"prompt": [5, 6]})", kLimits)->prompts.size(), 1u);
  EXPECT_EQ(parse_completion_call(R"({"prompt": [[5], [6]]})", kLimits)->prompts.size(), 2u);
  for (const char* bad : {R"({"prompt": ""})", R"({"prompt": {}})", R"({"prompt": [[]]})", R"({"prompt": ["a", 1]})", R"({"prompt": [1, "a"]})", R"({"prompt": [100]})", R"({"prompt": ["a","a","a","a","a"]})"})
    EXPECT_FALSE(parse_completion_call(bad, kLimits)) << bad;
}

TEST(Api, ErrorsAreInOneShape) {
  const auto shape = [](const Error& error) { return ordered_json::parse(to_json_text(to_api_error(error)))["error"]; };
  EXPECT_EQ(to_api_error({ErrorCode::kResourceExhausted, "full", ""}).status, 429);
  EXPECT_EQ(to_api_error({ErrorCode::kDraining, "ending", ""}).status, 503);
  EXPECT_EQ(to_api_error({ErrorCode::kInvalidArgument, "no", ""}).status, 400);
  EXPECT_EQ(to_api_error({ErrorCode::kInternal, "oh", ""}).status, 500);
  const auto error = shape({ErrorCode::kInvalidArgument, "bro\xffken", ""});
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_TRUE(error["param"].is_null());
}

TEST(Api, CallsAreWrittenAsTheirClientsExpect) {
  const std::vector<data::ToolCall> calls{{"f", {{"z", 1}, {"a", "ü"}}}, {"g", ordered_json::object()}};
  const auto whole = calls_json(calls, "7_0", false);
  EXPECT_EQ(whole[0]["function"]["arguments"], R"({"z":1,"a":"ü"})");
  EXPECT_EQ(whole[1]["function"]["arguments"], "{}");
  EXPECT_NE(whole[0]["id"], whole[1]["id"]);
  EXPECT_FALSE(whole[0].contains("index"));
  EXPECT_EQ(calls_json(calls, "7_0", true)[1]["index"], 1);
  EXPECT_EQ(finish_reason(generate::Finish::kStop, true), "tool_calls");
  EXPECT_EQ(finish_reason(generate::Finish::kLength, true), "length");
}

} // namespace
} // namespace troupe::serve
