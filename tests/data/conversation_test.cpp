// V12 and its kind: what a model said stays the ids that it sampled, turn after turn, in every release's template; where a template shows earlier
// turns otherwise, a new training sample begins. And what there is to learn from a conversation that is given.
#include "data/conversation.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "data/bpe_trainer.h"
#include "data/chat_source.h"
#include "data/deepseek_v4_chat.h"
#include "data/helpers.h"
#include "data/reply.h"

namespace troupe::data {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

// Bytes and the control tokens of all families: every template can be encoded with it, and a text has many encodings.
const Tokenizer& any_tokenizer() {
  static const Tokenizer tokenizer = [] {
    VocabularyOptions o;
    o.kind = "bpe";
    o.size = 300;
    o.added = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|start|>", "<|message|>", "<|end|>", "<|return|>",
               "<|call|>", "<|channel|>", "<|eom|>", "<|eot|>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
               "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>"};
    return std::move(*make_vocabulary(o, std::vector<std::string>{"the theory of the thing", "then there", "over the other"}));
  }();
  return tokenizer;
}

struct Release {
  const char* name;
  const char* says_before; // opens a reply where the generation prompt leaves that to the model
  const char* says_after;  // ends it
};

class Releases : public testing::TestWithParam<Release> {
 protected:
  void SetUp() override {
    const std::string name = GetParam().name;
    const std::string source = name == "deepseek_v4" ? std::string(deepseek_v4_template()) : name == "chatml" ? "" : release_template(name);
    ASSERT_TRUE(name == "chatml" || !source.empty()) << "scripts/setup.sh --tests brings it";
    auto made = PromptFormat::create(FormatSource{name == "chatml" ? "chatml" : "template", source, {}}, any_tokenizer());
    ASSERT_TRUE(made) << made.error().to_string();
    format.emplace(std::move(*made));
    extras.now = kTrainingDate;
  }
  // What somebody might sample for a text: byte by byte, so that encoding it again would give other ids.
  Ids sampled(const std::string& text) const {
    Ids ids;
    const auto& t = any_tokenizer();
    for (const char c : text) {
      const auto one = t.encode(std::string(1, c), Special::kPlain);
      ids.insert(ids.end(), one.begin(), one.end());
    }
    for (const std::string& control : {std::string(GetParam().says_after)})
      if (!control.empty()) ids.push_back(t.token_id(control).value());
    return ids;
  }
  Ids reply(const std::string& text) const {
    Ids ids;
    const std::string before = GetParam().says_before;
    if (!before.empty()) ids = any_tokenizer().encode(before, Special::kSpecial);
    const auto rest = sampled(text);
    ids.insert(ids.end(), rest.begin(), rest.end());
    return ids;
  }
  std::optional<PromptFormat> format;
  ChatExtras extras;
};

TEST_P(Releases, EveryTurnBeginsWithTheOnesBeforeOrASampleBegins) {
  Conversation conversation(*format, any_tokenizer(), extras);
  ASSERT_TRUE(conversation.begin({{"system", "Be brief.", {}}, {"user", "the theory?", {}}}));
  Ids shown = conversation.rendered().ids;
  std::size_t said = 0;
  for (const char* text : {"then the other", "there. the thing", "over"}) {
    const Ids sample = reply(text);
    Ids before = conversation.rendered().ids;
    const auto exact = conversation.go_on(sample, std::vector<Message>{{"user", std::string("and ") + text + "?", {}}});
    ASSERT_TRUE(exact) << exact.error().to_string();
    const Rendered& now = conversation.rendered();
    ASSERT_EQ(now.ids.size(), now.sampled.size());
    before.insert(before.end(), sample.begin(), sample.end());
    if (*exact) {
      EXPECT_TRUE(extends(before, now.ids)) << "the ids that were sampled, not those that their text is encoded to";
      said += sample.size();
      EXPECT_EQ(static_cast<std::size_t>(std::count(now.sampled.begin(), now.sampled.end(), 1)), said);
      for (std::size_t i = 0; i < sample.size(); ++i) EXPECT_EQ(now.sampled[before.size() - sample.size() + i], 1);
    } else {
      said = 0;
      EXPECT_EQ(std::count(now.sampled.begin(), now.sampled.end(), 1), 0) << "nothing that was encoded anew counts as sampled";
    }
    // Whatever happened, the text is what the template makes of the messages.
    const auto anew = format->render(conversation.messages(), true, any_tokenizer(), extras);
    ASSERT_TRUE(anew);
    EXPECT_EQ(any_tokenizer().decode(now.ids), any_tokenizer().decode(anew->ids));
  }
}

// With reasoning, which templates take out of earlier turns: that is not the same sample any more.
TEST(Reasoning, ThatIsTakenOutBeginsASample) {
  for (const char* name : {"qwen3", "qwen3_6"}) {
    const auto format = PromptFormat::create(FormatSource{"template", release_template(name), {}}, any_tokenizer());
    ASSERT_TRUE(format);
    Conversation conversation(*format, any_tokenizer());
    ASSERT_TRUE(conversation.begin({{"user", "the theory?", {}}}));
    Ids sample = any_tokenizer().encode(conversation.thinking() ? "the other\n</think>\n\nthen" : "<think>\nthe other\n</think>\n\nthen", Special::kPlain);
    sample.push_back(*any_tokenizer().token_id("<|im_end|>"));
    const Message told = conversation.message_of(sample);
    EXPECT_EQ(told.content, "then");
    EXPECT_THAT(told.more, HasSubstr("the other"));
    const auto exact = conversation.go_on(sample, std::vector<Message>{{"user", "go on", {}}});
    ASSERT_TRUE(exact);
    EXPECT_FALSE(*exact);
    EXPECT_EQ(any_tokenizer().decode(conversation.rendered().ids).find("the other"), std::string::npos);
  }
}

TEST_P(Releases, WhatThereIsToLearnIsWhatTheModelWouldHaveSampled) {
  const std::vector<Message> messages{{"system", "Be brief.", {}}, {"user", "the theory <|im_end|> of <|eot_id|>?", {}}, {"assistant", "then", {}}, {"user", "there?", {}}, {"assistant", "the other thing", {}}};
  const auto documents = format->documents(messages, any_tokenizer(), extras);
  ASSERT_TRUE(documents) << documents.error().to_string();
  std::string learned;
  for (const Rendered& document : *documents) {
    ASSERT_EQ(document.ids.size(), document.sampled.size());
    Ids ids;
    for (std::size_t i = 0; i < document.ids.size(); ++i)
      if (document.sampled[i] == 1) ids.push_back(document.ids[i]);
    ASSERT_FALSE(ids.empty());
    learned += any_tokenizer().decode(ids);
    const auto& stops = format->stop_ids();
    EXPECT_NE(std::find(stops.begin(), stops.end(), ids.back()), stops.end()) << "a turn's end is learned";
    EXPECT_EQ(document.sampled.front(), 0);
  }
  for (const char* theirs : {"Be brief", "theory", "there?"}) EXPECT_EQ(learned.find(theirs), std::string::npos) << learned;
  EXPECT_THAT(learned, HasSubstr("then"));
  EXPECT_THAT(learned, HasSubstr("the other thing"));
  EXPECT_EQ(learned.find("then"), learned.rfind("then")) << "every turn is said once: " << learned;
  // What the prompt of a turn shows is what generation would show.
  const auto prompt = format->render(std::span(messages).first(2), true, any_tokenizer(), extras);
  ASSERT_TRUE(prompt);
  const bool opens = any_tokenizer().decode(prompt->ids).ends_with("<think>\n") && std::string(GetParam().name) == "deepseekv3"; // and then shows no reasoning
  if (GetParam().says_before[0] == '\0' && !opens) {
    EXPECT_TRUE(extends(prompt->ids, documents->front().ids));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Releases,
                         testing::Values(Release{"chatml", "", "<|im_end|>"}, Release{"qwen3", "", "<|im_end|>"}, Release{"qwen3_instruct_2507", "", "<|im_end|>"}, Release{"qwen3_5_nothink", "", "<|im_end|>"},
                                         Release{"qwen3_6", "", "<|im_end|>"}, Release{"qwen3_8", "", "<|im_end|>"}, Release{"llama3_1", "", "<|eot_id|>"},
                                         Release{"gptoss", "<|channel|>final<|message|>", "<|return|>"}, Release{"deepseekv3", "", "<｜end▁of▁sentence｜>"}, Release{"deepseek_v4", "", "<｜end▁of▁sentence｜>"},
                                         Release{"muse_glimmer", " to=user<|message|>", "<|eot|>"}),
                         [](const auto& release) { return std::string(release.param.name); });

// The very ids of the report: turn end, line feed, turn start, and the line feed is nobody's.
TEST(Conversation, NothingIsLostBetweenTurnsOfQwen) {
  const auto& tokenizer = golden_tokenizer("qwen3");
  ASSERT_TRUE(tokenizer);
  for (const std::string name : {"template", "chatml"}) {
    const auto format = PromptFormat::create(FormatSource{name, release_template("qwen3_instruct_2507"), {}}, *tokenizer);
    ASSERT_TRUE(format) << format.error().to_string();
    Conversation conversation(*format, *tokenizer);
    ASSERT_TRUE(conversation.begin({{"user", "hi", {}}}));
    Ids before = conversation.rendered().ids;
    const Ids he = tokenizer->encode("he", Special::kPlain), llo = tokenizer->encode("llo", Special::kPlain), hello = tokenizer->encode("hello", Special::kPlain);
    ASSERT_EQ(hello.size(), 1u);
    Ids sample = he;
    sample.insert(sample.end(), llo.begin(), llo.end());
    sample.push_back(151645);
    ASSERT_EQ(conversation.go_on(sample, std::vector<Message>{{"user", "more", {}}}), true);
    const Rendered& now = conversation.rendered();
    before.insert(before.end(), sample.begin(), sample.end());
    ASSERT_TRUE(extends(before, now.ids));
    EXPECT_EQ(Ids(now.ids.begin() + static_cast<std::ptrdiff_t>(before.size()) - 1, now.ids.begin() + static_cast<std::ptrdiff_t>(before.size()) + 2), (Ids{151645, 198, 151644}));
    EXPECT_EQ(now.sampled[before.size() - 1], 1);
    EXPECT_EQ(now.sampled[before.size()], 0) << "the line feed was not sampled";
    EXPECT_EQ(std::find(now.ids.begin(), now.ids.end(), hello[0]), now.ids.end()) << "encoded again";
  }
}

TEST(Conversation, AReplyThatWasCutOffIsClosedByTheTemplateAndNotByTheModel) {
  const auto format = PromptFormat::create(FormatSource{"template", release_template("qwen3_instruct_2507"), {}}, any_tokenizer());
  ASSERT_TRUE(format);
  Conversation conversation(*format, any_tokenizer());
  ASSERT_TRUE(conversation.begin({{"user", "hi", {}}}));
  const std::size_t prompt = conversation.rendered().ids.size();
  const Ids sample = any_tokenizer().encode("there", Special::kPlain);
  ASSERT_EQ(conversation.go_on(sample, std::vector<Message>{{"user", "more", {}}}), true);
  const Rendered& now = conversation.rendered();
  EXPECT_EQ(now.ids[prompt + sample.size()], *any_tokenizer().token_id("<|im_end|>"));
  EXPECT_EQ(now.sampled[prompt + sample.size()], 0);
}

TEST(Conversation, CallsStayInTheHistory) {
  const auto format = PromptFormat::create(FormatSource{"template", release_template("qwen3_instruct_2507"), {}}, any_tokenizer());
  ASSERT_TRUE(format);
  ChatExtras extras;
  extras.tools = R"([{"type":"function","function":{"name":"clock","parameters":{"type":"object","properties":{}}}}])";
  Conversation conversation(*format, any_tokenizer(), extras);
  ASSERT_TRUE(conversation.begin({{"user", "the time?", {}}}));
  EXPECT_THAT(any_tokenizer().decode(conversation.rendered().ids), HasSubstr("clock"));
  Ids sample = any_tokenizer().encode("<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>", Special::kPlain);
  sample.push_back(*any_tokenizer().token_id("<|im_end|>"));
  ASSERT_EQ(conversation.go_on(sample, std::vector<Message>{{"tool", "noon", {}}}), true);
  EXPECT_THAT(conversation.messages()[1].more, HasSubstr("clock"));
  EXPECT_THAT(any_tokenizer().decode(conversation.rendered().ids), HasSubstr("noon"));
}

TEST(Conversation, ARefusalLeavesItAsItWas) {
  const auto format = PromptFormat::create(FormatSource{"template", "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}<|im_end|>{% endfor %}", {}}, any_tokenizer());
  ASSERT_TRUE(format);
  Conversation conversation(*format, any_tokenizer());
  ASSERT_TRUE(conversation.begin({{"user", "hi", {}}}));
  const Ids before = conversation.rendered().ids;
  EXPECT_THAT(conversation.go_on(Ids{1}, std::vector<Message>{{"user", "bad", {}}}).error().message, HasSubstr("refuses the conversation: no"));
  EXPECT_EQ(conversation.rendered().ids, before);
  EXPECT_EQ(conversation.messages().size(), 1u);
}

TEST(FormatSource, AutoTakesWhatThereIs) {
  const auto name = [&](const FormatSource& source, const Tokenizer& tokenizer) { return PromptFormat::create(source, tokenizer)->name(); };
  EXPECT_EQ(name({"auto", "{{ messages }}", {}}, any_tokenizer()), "template");
  EXPECT_EQ(name({}, any_tokenizer()), "chatml");
  VocabularyOptions bytes;
  bytes.added = {"<|endoftext|>"};
  EXPECT_EQ(name({}, *make_vocabulary(bytes, {})), "plain");
  EXPECT_THAT(PromptFormat::create(FormatSource{"template", "", {}}, any_tokenizer()).error().message, HasSubstr("brings none"));
  EXPECT_THAT(PromptFormat::create(FormatSource{"template", "{% for", {}}, any_tokenizer()).error().message, HasSubstr("cannot be read"));
  const auto ends = PromptFormat::create(FormatSource{"chatml", "", {7, 9}}, any_tokenizer());
  EXPECT_THAT(ends->stop_ids(), testing::IsSupersetOf({7, 9}));
}

TEST(ChatSource, IsFoundWhereverReleasesKeepIt) {
  const TemporaryFolder folder;
  EXPECT_EQ(find_chat_template(folder.path(), "qwen3")->jinja, "");
  EXPECT_EQ(find_chat_template(folder.path(), "deepseek_v4")->jinja, deepseek_v4_template());
  folder.write("tokenizer_config.json", R"({"chat_template": "A"})");
  EXPECT_EQ(find_chat_template(folder.path(), "deepseek_v4")->jinja, "A");
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  EXPECT_EQ(find_chat_template(folder.path(), "")->jinja, "D");
  folder.write("chat_template.jinja", "J");
  EXPECT_EQ(find_chat_template(folder.path(), "")->jinja, "J");
  std::filesystem::remove(folder.path() / "chat_template.jinja");
  for (const char* wrong : {R"({"chat_template": 3})", R"({"chat_template": [{"name": "other", "template": "T"}]})", "{"}) {
    folder.write("tokenizer_config.json", wrong);
    EXPECT_FALSE(find_chat_template(folder.path(), "")) << wrong;
  }
}

} // namespace
} // namespace troupe::data
