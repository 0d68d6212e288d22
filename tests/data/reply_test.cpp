// Replies of every family taken apart: what their own templates write comes back, and what is cut off is an error and never a call.
#include "data/reply.h"

#include <gmock/gmock.h>

#include "data/chat_template.h"
#include "data/deepseek_v4_chat.h"
#include "data/helpers.h"

namespace troupe::data {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

struct Family {
  const char* golden;
  const char* format;
  const char* end; // of a turn
};

class ReplyRoundTrip : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    const std::string name = GetParam().golden;
    golden = ordered_json::parse(std::ifstream(kChatGoldens / (name + ".json")));
    const std::string source = name == "deepseek_v4" ? std::string(deepseek_v4_template()) : release_template(name);
    ASSERT_FALSE(source.empty()) << "scripts/setup.sh --tests brings it";
    auto parsed = ChatTemplate::parse(source, {{"bos_token", golden.value("bos_token", "")}});
    ASSERT_TRUE(parsed);
    chat.emplace(std::move(*parsed));
  }
  std::string render(const ordered_json& messages, const ordered_json& tools, bool prompt) const {
    ChatRequest request;
    request.messages = messages, request.tools = tools, request.generation_prompt = prompt;
    if (std::string(GetParam().golden) == "deepseek_v4") request = deepseek_v4_request(request).value();
    const auto parts = chat->render(request, {});
    return parts ? joined(*parts) : "";
  }
  // What the model is made to say by the template: the rendering with the assistant's message, less the prompt before it.
  std::string reply_to(const ordered_json& messages, std::size_t assistant, const ordered_json& tools) const {
    ordered_json before = ordered_json::array(), with = ordered_json::array();
    for (std::size_t i = 0; i <= assistant; ++i) {
      if (i < assistant) before.push_back(messages[i]);
      with.push_back(messages[i]);
    }
    const std::string prompt = render(before, tools, true), whole = render(with, tools, false);
    std::size_t same = 0; // a prompt may open a reasoning that the message lacks
    while (same < prompt.size() && same < whole.size() && prompt[same] == whole[same]) ++same;
    while (same < prompt.size() && same > 0 && whole[same - 1] == '<') --same; // not in the middle of a mark
    const std::string end = GetParam().end;
    const auto at = end.empty() ? std::string::npos : whole.rfind(end);
    return whole.substr(same, at == std::string::npos || at < same ? std::string::npos : at + end.size() - same);
  }
  ordered_json golden;
  std::optional<ChatTemplate> chat;
};

TEST_P(ReplyRoundTrip, CallsComeBackAndAnythingCutOffDoesNot) {
  const ReplyFormat format = parse_reply_format(GetParam().format).value();
  std::size_t calls = 0;
  for (const auto& c : golden["cases"]) {
    const ordered_json& body = c.contains("body") ? c["body"] : c;
    const ordered_json tools = body.value("tools", ordered_json());
    const ordered_json& messages = body["messages"];
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i]["role"] != "assistant" || !messages[i].contains("tool_calls") || c.contains("error")) continue;
      const std::string text = reply_to(messages, i, tools);
      if (text.empty()) continue; // two calls at once are more than some templates write
      const Reply reply = parse_reply(format, text, false, tools);
      EXPECT_THAT(reply.problems, IsEmpty()) << text;
      std::vector<ToolCall> wanted;
      for (const ordered_json& call : messages[i]["tool_calls"]) {
        const ordered_json& arguments = call["function"]["arguments"];
        wanted.push_back({call["function"]["name"], arguments.is_string() ? ordered_json::parse(arguments.get<std::string>()) : arguments});
      }
      if (std::string(GetParam().golden) == "gptoss" && wanted.size() > 1) wanted.resize(1); // its template writes one
      EXPECT_EQ(reply.calls, wanted) << text;
      calls += wanted.size();
      // Cut anywhere: fewer calls, every one of them whole. A cut inside the last call is told.
      for (std::size_t cut = 0; cut < text.size(); ++cut) {
        const Reply part = parse_reply(format, text.substr(0, cut), false, tools);
        ASSERT_LE(part.calls.size(), wanted.size()) << text.substr(0, cut);
        for (std::size_t k = 0; k < part.calls.size(); ++k) ASSERT_EQ(part.calls[k], wanted[k]) << text.substr(0, cut);
      }
    }
  }
  EXPECT_GE(calls, 2u);
}

INSTANTIATE_TEST_SUITE_P(Families, ReplyRoundTrip,
                         testing::Values(Family{"qwen3", "qwen3", "<|im_end|>"}, Family{"qwen3_instruct_2507", "qwen3", "<|im_end|>"},
                                         Family{"qwen3_5_think", "qwen3_5", "<|im_end|>"}, Family{"qwen3_6", "qwen3_5", "<|im_end|>"},
                                         Family{"qwen3_8", "qwen3_5", "<|im_end|>"}, Family{"llama3_1", "llama3", "<|eot_id|>"},
                                         Family{"gptoss", "gpt_oss", "<|call|>"}, Family{"deepseekv3", "deepseek_v3", "<｜end▁of▁sentence｜>"},
                                         Family{"deepseek_v4", "deepseek_v4", "<｜end▁of▁sentence｜>"}, Family{"muse_glimmer", "muse_spark", "<|eot|>"}),
                         [](const auto& family) { return std::string(family.param.golden); });

Reply of(const char* format, std::string_view text, bool thinking = false, const ordered_json& tools = {}) {
  return parse_reply(parse_reply_format(format).value(), text, thinking, tools);
}

TEST(Reply, ReasoningIsApartFromTheAnswer) {
  EXPECT_EQ(of("plain", "<think>\nhm\n</think>\n\n4").reasoning, "hm");
  EXPECT_EQ(of("plain", "<think>\nhm\n</think>\n\n4").content, "4");
  EXPECT_EQ(of("qwen3", "hm</think>4<|im_end|>", true).content, "4") << "opened by the prompt";
  EXPECT_EQ(of("qwen3", "still at it", true).reasoning, "still at it");
  EXPECT_EQ(of("qwen3", "still at it", true).content, "");
  EXPECT_EQ(of("gpt_oss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>").content, "4");
  EXPECT_EQ(of("gpt_oss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>").reasoning, "hm");
  EXPECT_EQ(of("muse_spark", " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>4<|eot|>").content, "4");
}

TEST(Reply, MalformedCallsAreErrorsToTellTheModel) { // S14
  const auto cut = of("qwen3", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1");
  EXPECT_THAT(cut.calls, IsEmpty());
  ASSERT_THAT(cut.problems, SizeIs(1));
  EXPECT_THAT(cut.problems[0], HasSubstr("cut off"));
  const auto broken = of("qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": }}</tool_call>");
  EXPECT_THAT(broken.calls, IsEmpty());
  EXPECT_THAT(broken.problems, SizeIs(1));
  const auto twice = of("qwen3", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>");
  EXPECT_THAT(twice.calls, SizeIs(1)) << "the same object twice is run once";
  const auto beside = of("qwen3", "I look it up. <tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call> Wait.");
  EXPECT_THAT(beside.calls, SizeIs(1));
  EXPECT_EQ(beside.content, "I look it up.  Wait.");
  const auto none = of("qwen3", "<tool_call>{\"name\":\"f\",\"arguments\":\"\"}</tool_call>");
  ASSERT_THAT(none.calls, SizeIs(1));
  EXPECT_EQ(none.calls[0].arguments, ordered_json::object());
  for (const char* text : {"<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>", "<tool_call>{\"arguments\":{}}</tool_call>", "<tool_call>[]</tool_call>"}) {
    EXPECT_THAT(of("qwen3", text).calls, IsEmpty()) << text;
    EXPECT_THAT(of("qwen3", text).problems, SizeIs(1)) << text;
  }
  EXPECT_THAT(of("llama3", "{\"name\": \"f\", \"parameters\": {").problems, SizeIs(1));
  EXPECT_THAT(of("gpt_oss", " to=functions.f<|channel|>commentary json<|message|>{\"a\":").problems[0], HasSubstr("cut off"));
  EXPECT_THAT(of("qwen3_5", "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>").problems[0], HasSubstr("twice"));
  EXPECT_THAT(of("deepseek_v4", "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"false\">{</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>").problems[0],
              HasSubstr("no JSON"));
}

TEST(Reply, ValuesTakeTheTypeThatTheToolNames) {
  const ordered_json tools = {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"properties", {{"s", {{"type", "string"}}}, {"n", {{"type", "integer"}}}}}}}}}}};
  const auto reply = of("qwen3_5", "<tool_call>\n<function=f>\n<parameter=s>\n17\n</parameter>\n<parameter=n>\n17\n</parameter>\n<parameter=u>\nTrue\n</parameter>\n</function>\n</tool_call>", false, tools);
  ASSERT_THAT(reply.calls, SizeIs(1));
  EXPECT_EQ(reply.calls[0].arguments, (ordered_json{{"s", "17"}, {"n", 17}, {"u", true}}));
}

TEST(Reply, AnUnknownFormatNamesTheKnownOnes) { EXPECT_THAT(parse_reply_format("qwen9").error().message, HasSubstr("qwen3_5")); }

} // namespace
} // namespace troupe::data
