// Turn by turn: sampled ids are kept, what was computed is reused, and both change nothing.
#include "serve/chat_session.h"

#include "serve/support.h"

namespace troupe::serve {
namespace {

using namespace test;

const std::atomic<bool> kNever = false;

ChatOptions options_of(double temperature) {
  ChatOptions o;
  o.sampling.temperature = temperature;
  o.sampling.max_new_tokens = 24;
  o.seed = 11;
  return o;
}

class SessionOf : public testing::TestWithParam<const char*> {};

// A state cannot go back (DeltaNet): there the prompt is shared and not the reply.
TEST_P(SessionOf, TurnsGoOnFromSampledIdsAndFromWhatIsInTheCache) {
  ServedModel model = golden(GetParam());
  ServedModel cold_model = golden(GetParam());
  ChatSession session(model, engine_options(), options_of(0.9));
  generate::EngineOptions cold = engine_options();
  cold.reuse_prefixes = false;
  cold.cached_prompts_max = 0;
  ChatSession other(cold_model, cold, options_of(0.9));
  std::vector<std::int32_t> before;
  for (const char* text : {"hello there, how are you", "why", "and then"}) {
    std::string heard;
    const auto turn = session.say(text, [&](const Delta& delta) { heard += delta.content; }, kNever);
    ASSERT_TRUE(turn) << turn.error().to_string();
    EXPECT_TRUE(turn->exact);
    EXPECT_EQ(heard, turn->said.content);
    const auto ids = session.ids();
    EXPECT_TRUE(data::extends(before, ids));
    before = ids;
    const auto same = other.say(text, [](const Delta&) {}, kNever);
    ASSERT_TRUE(same);
    EXPECT_EQ(other.ids(), ids) << "what is reused changes no token";
  }
  EXPECT_GT(session.stats().tokens_shared, 30u);
  EXPECT_EQ(other.stats().tokens_shared, 0u);
  EXPECT_EQ(session.stats().tokens_sampled, other.stats().tokens_sampled);
  EXPECT_EQ(session.stats().tokens_computed + session.stats().tokens_shared, other.stats().tokens_computed);
}
INSTANTIATE_TEST_SUITE_P(Families, SessionOf, testing::Values("qwen3/base", "llama3/base", "gpt_oss/base", "deepseek_v3/base", "qwen3_5/base", "deepseek_v4/base"), [](const auto& name) {
  std::string text = name.param;
  std::replace(text.begin(), text.end(), '/', '_');
  return text;
});

TEST(ChatSession, AStoppedReplyIsPartOfTheConversation) {
  ServedModel model = golden("qwen3/base");
  ChatSession session(model, engine_options(), options_of(1));
  std::atomic<bool> stop = false;
  int deltas = 0;
  const auto turn = session.say("go on", [&](const Delta&) { stop = ++deltas == 3; }, stop);
  ASSERT_TRUE(turn);
  EXPECT_EQ(turn->finish, generate::Finish::kAborted);
  EXPECT_LT(turn->tokens, 24u);
  EXPECT_EQ(session.messages().size(), 2u);
  EXPECT_EQ(session.messages()[1].content, turn->said.content);
  const auto ids = session.ids();
  ASSERT_TRUE(session.say("further", [](const Delta&) {}, kNever));
  EXPECT_TRUE(data::extends(ids, session.ids()));
}

TEST(ChatSession, ResetForgetsAndARefusalDoesNot) {
  ServedModel model = golden("qwen3/base");
  ChatSession session(model, engine_options(), options_of(0));
  ASSERT_TRUE(session.say("first", [](const Delta&) {}, kNever));
  const auto first = session.ids();
  EXPECT_FALSE(session.say(std::string(1000, 'x'), [](const Delta&) {}, kNever)) << "longer than the context";
  EXPECT_EQ(session.ids(), first);
  session.reset("Be kind.");
  EXPECT_TRUE(session.messages().empty());
  ASSERT_TRUE(session.say("first", [](const Delta&) {}, kNever));
  EXPECT_EQ(session.messages().front().role, "system");
  session.reset("");
  ASSERT_TRUE(session.say("first", [](const Delta&) {}, kNever));
  EXPECT_EQ(session.ids(), first) << "greedy, so the same again";
}

} // namespace
} // namespace troupe::serve
