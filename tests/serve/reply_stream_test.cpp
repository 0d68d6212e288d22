// A reply taken apart while it is said is the reply taken apart at the end, in every grammar and however it is cut into tokens.
#include "serve/reply_stream.h"

#include <gmock/gmock.h>

#include "base/rng.h"
#include "data/bpe_trainer.h"

namespace troupe::serve {
namespace {

using data::ReplyFormat;
using nlohmann::ordered_json;

const data::Tokenizer& bytes() { // every byte a token, so that characters and marks are cut everywhere
  static const data::Tokenizer tokenizer = std::move(*data::make_vocabulary({}, {}));
  return tokenizer;
}

generate::Completion completion_of(const std::string& text, std::optional<std::size_t> cut = {}) {
  generate::Completion c;
  c.finish = generate::Finish::kStop;
  for (const char byte : text) c.ids.push_back(static_cast<unsigned char>(byte));
  if (!cut) c.ids.push_back(*bytes().eos());
  c.text = text.substr(0, cut.value_or(text.size()));
  c.text_tokens_kept = c.text.size();
  c.text_bytes_kept = c.text.size();
  return c;
}

struct Case {
  const char* name;
  std::optional<ReplyFormat> format;
  bool thinking;
  std::string text;
};

class Grammars : public testing::TestWithParam<Case> {};

TEST_P(Grammars, DeltasJoinedAreTheWhole) {
  const Case& c = GetParam();
  ReplyStream::Options options;
  options.format = c.format;
  options.thinking = c.thinking;
  ReplyStream stream(bytes(), options);
  std::string reasoning, content;
  int deltas = 0;
  const auto add = [&](const Delta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    deltas += delta.empty() ? 0 : 1;
    for (const std::string* part : {&delta.reasoning, &delta.content})
      EXPECT_EQ(part->find("\uFFFD"), std::string::npos) << "a character was split";
    EXPECT_EQ(delta.content.find('<'), std::string::npos) << "part of a mark";
  };
  const auto completion = completion_of(c.text);
  for (const std::int32_t id : completion.ids) add(stream.push(id));
  const Delta rest = stream.finish(completion);
  add(rest);
  const data::Reply whole = c.format ? data::parse_reply(*c.format, c.text, c.thinking, {}) : data::Reply{{}, c.text, {}, {}};
  EXPECT_EQ(reasoning, whole.reasoning);
  EXPECT_EQ(content, whole.content);
  EXPECT_EQ(rest.calls, whole.calls);
  EXPECT_EQ(rest.problems, whole.problems);
  EXPECT_EQ(stream.said().calls, whole.calls);
  EXPECT_TRUE(whole.content.empty() || deltas > 3) << "bit by bit, not at the end";
}

INSTANTIATE_TEST_SUITE_P(
    All, Grammars,
    testing::Values(Case{"text", std::nullopt, false, "plain wörds, 日本語 and 🙂🙂"}, Case{"plain", ReplyFormat::kPlain, false, "<think>\nlet me süß\n</think>\n\nthe answer is 4, I think 🙂"},
                    Case{"opened", ReplyFormat::kQwen3, true, "so then\n</think>\n\nthe answer is this"}, Case{"still_thinking", ReplyFormat::kQwen3, true, "it goes on and on"},
                    Case{"qwen3", ReplyFormat::kQwen3, false, "I look it up now.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"ö\"}}\n</tool_call>"},
                    Case{"qwen3_cut", ReplyFormat::kQwen3, false, "I look it up now.\n<tool_call>\n{\"name\": \"f\", \"argum"},
                    Case{"qwen3_5", ReplyFormat::kQwen3_5, true, "hm\n</think>\n\nlook it up\n\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"},
                    Case{"llama3_text", ReplyFormat::kLlama3, false, "no call at all here"}, Case{"llama3_call", ReplyFormat::kLlama3, false, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}"},
                    Case{"harmony", ReplyFormat::kHarmony, false, "<|channel|>analysis<|message|>let me see<|end|><|start|>assistant<|channel|>final<|message|>the answer is 4<|return|>"},
                    Case{"harmony_call", ReplyFormat::kHarmony, false, "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|>"},
                    Case{"deepseek_v3", ReplyFormat::kDeepSeekV3, true, "hm</think>well, look\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
                    Case{"deepseek_v4", ReplyFormat::kDeepSeekV4, true, "hm</think>well, look\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"},
                    Case{"muse", ReplyFormat::kMuse, false, " to=self<|message|>let me see<|eom|><|start|>assistant to=user<|message|>the answer is 4<|eot|>"}),
    [](const auto& c) { return std::string(c.param.name); });

TEST(ReplyStream, AngleBracketsOfTheTextAreNotLost) {
  const std::string text = "if a < b and c > d or <x then a<b <" + std::string(100, 'y') + " end<";
  ReplyStream::Options options;
  options.format = ReplyFormat::kQwen3;
  ReplyStream stream(bytes(), options);
  std::string content;
  const auto completion = completion_of(text);
  for (const std::int32_t id : completion.ids) content += stream.push(id).content;
  EXPECT_GT(content.size(), 100u) << "only what may be a mark is held back";
  content += stream.finish(completion).content;
  EXPECT_EQ(content, text);
}

TEST(ReplyStream, NoPartOfAStopStringGetsOut) {
  const std::string text = "one two stops here";
  for (const std::string& stop : std::vector<std::string>{"stops here", "s here", "e"}) {
    ReplyStream::Options options;
    options.stops = {stop, "stoppage"};
    ReplyStream stream(bytes(), options);
    const auto at = text.find(stop);
    const auto completion = completion_of(text.substr(0, at + stop.size()), at);
    std::string said;
    for (const std::int32_t id : completion.ids) {
      said += stream.push(id).content;
      EXPECT_LE(said.size(), at);
    }
    said += stream.finish(completion).content;
    EXPECT_EQ(said, text.substr(0, at));
  }
}

TEST(ReplyStream, CostGrowsWithTheTextAndNotWithItsSquare) {
  std::string text;
  while (text.size() < 400'000) text += "word <b> and \n";
  ReplyStream::Options options;
  options.format = ReplyFormat::kQwen3;
  const auto begin = std::chrono::steady_clock::now();
  ReplyStream stream(bytes(), options);
  const auto completion = completion_of(text);
  for (const std::int32_t id : completion.ids) (void)stream.push(id);
  EXPECT_EQ(stream.finish(completion).calls.size(), 0u);
  EXPECT_EQ(stream.said().content.size(), text.find_last_not_of(" \n") + 1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "each token parsing everything would take minutes";
}

} // namespace
} // namespace troupe::serve
