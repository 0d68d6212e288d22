// Every golden rendering of ten releases' templates; and that nobody's text becomes a control token, whatever a template does with it.
#include "data/chat_template.h"

#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "data/deepseek_v4_chat.h"
#include "data/helpers.h"

namespace troupe::data {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

ChatTemplate template_of(std::string_view source) {
  auto parsed = ChatTemplate::parse(source);
  EXPECT_TRUE(parsed) << parsed.error().to_string();
  return std::move(*parsed);
}

ChatRequest says(const std::string& content) {
  ChatRequest request;
  request.messages = ordered_json::array({{{"role", "user"}, {"content", content}}});
  return request;
}

class GoldenTemplate : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    golden = ordered_json::parse(std::ifstream(kChatGoldens / (std::string(GetParam()) + ".json")));
    const std::string source = release_template(GetParam());
    ASSERT_FALSE(source.empty()) << "scripts/setup.sh --tests brings it";
    auto parsed = ChatTemplate::parse(source, {{"bos_token", golden["bos_token"]}});
    ASSERT_TRUE(parsed) << parsed.error().to_string();
    chat.emplace(std::move(*parsed));
  }
  static ChatRequest request_of(const ordered_json& c) {
    ChatRequest request;
    request.messages = c["messages"], request.tools = c["tools"], request.variables = c["kwargs"];
    request.generation_prompt = c["add_generation_prompt"];
    request.now = 1'800'000'000;
    return request;
  }
  static std::string dated(std::string text) {
    char today[16];
    const std::time_t now = 1'800'000'000;
    std::strftime(today, sizeof today, "%Y-%m-%d", std::localtime(&now));
    if (const auto at = text.find("{TODAY}"); at != std::string::npos) text.replace(at, 7, today);
    return text;
  }
  ordered_json golden;
  std::optional<ChatTemplate> chat;
};

// What a conversation may hold without being taken for structure.
const std::vector<std::string> kControl{"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<｜User｜>", "<｜Assistant｜>", "<|eot_id|>", "<|start|>", "<|end|>", "<|eot|>"};

TEST_P(GoldenTemplate, RendersEveryCaseWithAndWithoutMarks) {
  ASSERT_GE(golden["cases"].size(), 20u);
  for (const auto& c : golden["cases"]) {
    for (const auto& control : {std::vector<std::string>{}, kControl}) {
      const auto parts = chat->render(request_of(c), control);
      if (c.contains("error")) {
        ASSERT_FALSE(parts) << c["case"];
        EXPECT_THAT(parts.error().message, HasSubstr(c["error"].get<std::string>().substr(0, 40)));
        continue;
      }
      ASSERT_TRUE(parts) << c["case"] << ": " << parts.error().to_string();
      EXPECT_EQ(joined(*parts), dated(c["rendered"])) << c["case"] << " " << c["kwargs"].dump();
    }
  }
}

// Control tokens put everywhere that somebody else writes: contents, reasoning, tools and their descriptions, names and values of arguments.
ordered_json poisoned(const ordered_json& value, const std::string& poison) {
  if (value.is_string()) return value.get<std::string>() + poison;
  if (value.is_array()) {
    ordered_json out = ordered_json::array();
    for (const auto& item : value) out.push_back(poisoned(item, poison));
    return out;
  }
  if (!value.is_object()) return value;

  ordered_json out = ordered_json::object();
  for (const auto& [key, item] : value.items()) {
    const bool structure = key == "role" || key == "type" || key == "id" || key == "tool_call_id" || key == "required" || key == "name";
    out[key] = structure || (key == "arguments" && item.is_string()) ? item : poisoned(item, poison);
  }
  return out;
}

TEST_P(GoldenTemplate, NoTextInTheRequestGivesAControlToken) {
  const auto count = [](const std::vector<TextPart>& parts, const std::string& name) {
    std::size_t n = 0; // outside of input, and not over an edge of it
    for (const TextPart& part : parts)
      for (std::size_t at = 0; !part.from_input && (at = part.text.find(name, at)) != std::string::npos; at += name.size()) ++n;
    return n;
  };
  for (const auto& c : golden["cases"]) {
    if (c.contains("error") || c["case"] == "special_in_text") continue;
    const auto with = [&](const std::string& text) {
      ordered_json changed = c;
      changed["messages"] = poisoned(c["messages"], " " + text);
      changed["tools"] = poisoned(c["tools"], " " + text);
      return chat->render(request_of(changed), kControl);
    };
    const auto before = with("harmless");
    for (const std::string& name : kControl) {
      const auto after = with(name);
      ASSERT_EQ(after.has_value(), before.has_value()) << c["case"];
      if (!after) continue; // the template refuses that
      EXPECT_NE(joined(*after).find(name), std::string::npos);
      EXPECT_EQ(count(*after, name), count(*before, name)) << c["case"] << " " << name << "\n" << joined(*after);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Releases, GoldenTemplate,
                         testing::Values("qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8", "deepseekv3", "llama3_1",
                                         "gptoss", "muse_glimmer"));

TEST(DeepSeekV4, RendersEveryCaseOfBothEncoders) {
  const auto chat = template_of(deepseek_v4_template());
  const auto expect = [&](const ordered_json& c, ChatRequest request) {
    const auto ready = deepseek_v4_request(std::move(request));
    ASSERT_TRUE(ready) << c["case"];
    const auto parts = chat.render(*ready, kControl);
    ASSERT_TRUE(parts) << c["case"] << ": " << parts.error().to_string();
    EXPECT_EQ(joined(*parts), c["rendered"].get<std::string>()) << c["case"] << " " << c["mode"];
  };
  const ordered_json now = ordered_json::parse(std::ifstream(kChatGoldens / "deepseek_v4.json")), april = ordered_json::parse(std::ifstream(kChatGoldens / "deepseek_v4_april.json"));
  for (const auto& c : now["cases"]) {
    const ordered_json& body = c["body"];
    ChatRequest request;
    request.messages = body["messages"];
    if (body.contains("tools")) request.tools = body["tools"];
    request.variables["thinking"] = !body.contains("thinking");
    if (body.contains("reasoning_effort")) request.variables["reasoning_effort"] = body["reasoning_effort"];
    expect(c, std::move(request));
  }
  for (const auto& c : april["cases"]) {
    const ordered_json& given = c["kwargs"];
    ChatRequest request;
    request.messages = c["messages"];
    if (c["messages"][0].contains("tools")) request.tools = c["messages"][0]["tools"];
    request.generation_prompt = c["messages"].back()["role"] != "assistant";
    request.variables = {{"release", "2026-04"}, {"thinking", given["thinking_mode"] == "thinking"}, {"keep_reasoning", given.value("drop_thinking", true) == false}};
    if (given.contains("reasoning_effort")) request.variables["reasoning_effort"] = given["reasoning_effort"];
    expect(c, std::move(request));
  }
}

TEST(DeepSeekV4, ResultsTakeTheOrderOfTheirCallsAndBadCallsAreNamed) {
  ChatRequest request;
  const auto call = [](const char* id, ordered_json arguments) { return ordered_json{{"id", id}, {"function", {{"name", "f"}, {"arguments", std::move(arguments)}}}}; };
  request.messages = {{{"role", "user"}, {"content", "go"}},
                      {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call("a", "{}"), call("b", ordered_json::object())}}},
                      {{"role", "tool"}, {"tool_call_id", "b"}, {"content", "second"}},
                      {{"role", "tool"}, {"tool_call_id", "a"}, {"content", "first"}}};
  const auto ready = deepseek_v4_request(request);
  ASSERT_TRUE(ready) << ready.error().to_string();
  EXPECT_EQ(ready->messages[2]["content"], "first");
  EXPECT_EQ(ready->messages[3]["content"], "second");
  request.messages[1]["tool_calls"][0] = call("a", "{\"cut\": ");
  EXPECT_THAT(deepseek_v4_request(request).error().message, HasSubstr("the call to \"f\" are no JSON object"));
  request = says("hi");
  request.variables["reasoning_effort"] = "utmost";
  EXPECT_THAT(deepseek_v4_request(request).error().message, HasSubstr("utmost"));
}

TEST(ChatTemplate, MarksSurviveWhatTemplatesDoWithText) {
  const std::vector<std::string> control{"<|end|>", "<|e"};
  for (const char* body : {"{{ m.content }}", "{{ m.content | tojson }}", "{{ m.content | tojson(ensure_ascii=true) }}", "{{ m.content.split(' ')[-1] }}",
                           "{{ m.content | upper | lower }}", "{{ (m.content ~ 'x')[:-1] }}", "{% set a = m.content %}{{ a | trim }}", "{{ m | tojson }}",
                           "{% for k, v in m.args.items() %}{{ k }}={{ v }};{% endfor %}", "{{ m.content | replace('a', 'b') }}"}) {
    ChatRequest request = says("a <|end|>");
    request.messages[0]["args"] = {{"key <|end|>", "value <|end|>"}};
    const auto parts = template_of("{% for m in messages %}" + std::string(body) + "{% endfor %}<|end|>").render(request, control);
    ASSERT_TRUE(parts) << body << parts.error().to_string();
    EXPECT_THAT(joined(*parts), HasSubstr("<|end|>"));
    std::string structure;
    for (const TextPart& part : *parts) structure += part.from_input ? std::string(1, '\0') : part.text;
    EXPECT_EQ(structure.find("<|end|>"), structure.size() - 7) << body << ": only the template's own is left";
  }
}

TEST(ChatTemplate, PartsBecomeIdsWithoutTheControlTokensOfOthers) {
  const auto& tokenizer = golden_tokenizer("qwen3");
  ASSERT_TRUE(tokenizer);
  const auto end = tokenizer->token_id("<|im_end|>");
  const std::vector<TextPart> parts{{"<|im_start|>user\n", false}, {"hello <|im_end|> you", true}, {"<|im_end|>\n", false}};
  const auto ids = tokenizer->encode(parts);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *end), 1);
  EXPECT_EQ(tokenizer->decode(ids), "<|im_start|>user\nhello <|im_end|> you<|im_end|>\n");
  // Text without control tokens: the same ids as of the whole, words over the edges of parts included.
  const std::vector<TextPart> plain{{"<|im_start|>us", false}, {"er\nhel", true}, {"lo", false}, {" you", true}, {"<|im_end|>", false}};
  EXPECT_EQ(tokenizer->encode(plain), tokenizer->encode("<|im_start|>user\nhello you<|im_end|>", Special::kSpecial));
  // Nor does one come together over an edge.
  const std::vector<TextPart> halves{{"<|im_", true}, {"end|>", false}};
  const auto none = tokenizer->encode(halves);
  EXPECT_EQ(std::count(none.begin(), none.end(), *end), 0);
}

TEST(ChatTemplate, WhatIsWrongIsSaidInOneLine) {
  const auto error = [](std::string_view source) {
    auto parsed = ChatTemplate::parse(source);
    if (!parsed) return parsed.error().message;
    const auto rendered = parsed->render(says("hi"), {});
    return rendered ? "rendered " + joined(*rendered) : rendered.error().message;
  };
  EXPECT_THAT(error("{% for m in messages %}"), HasSubstr("cannot be read"));
  EXPECT_THAT(error("{{ raise_exception('no tools here') }}"), HasSubstr("refuses the conversation: no tools here"));
  EXPECT_THAT(error("{{ nothing() }}"), HasSubstr("failed"));
  EXPECT_THAT(error("{% for i in range(2000) %}{% for j in range(2000) %}{% endfor %}{% endfor %}"), HasSubstr("loops for more than 200000 turns"));
  EXPECT_THAT(error("{{ range(1000000000000) | length }}"), HasSubstr("loops for more than"));
  for (const char* doubles : {"{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
                              "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
                              "{% macro f(s, n) %}{% if n > 0 %}{{ f(s ~ s, n - 1) }}{% else %}{{ s }}{% endif %}{% endmacro %}{{ f('0123456789abcdef', 26) }}",
                              "{% set s %}{% for i in range(1000) %}0123456789{% endfor %}{% endset %}{% for i in range(100000) %}{% if true %}{{ s }}{% endif %}{% endfor %}"})
    EXPECT_THAT(error(doubles), HasSubstr("stopped: it makes more than 64 MiB of text")) << doubles;
  EXPECT_THAT(error("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}"), HasSubstr("calls itself without end"));
  for (const char* source : {"{% for m in messages %}", "{{ f( }}", "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}"}) EXPECT_EQ(error(source).find('\n'), std::string::npos) << error(source);
}

TEST(ChatTemplate, TheSameFromSeveralThreads) {
  const auto chat = template_of("{% for m in messages %}{{ m.content }}{% endfor %}");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int n = 0; n < 100; ++n) EXPECT_EQ(joined(chat.render(says(std::to_string(i)), {}).value()), std::to_string(i));
    });
  for (auto& thread : threads) thread.join();
}

} // namespace
} // namespace troupe::data
