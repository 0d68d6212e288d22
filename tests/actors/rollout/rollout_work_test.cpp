#include "actors/rollout/bench.h"

namespace troupe::actors {
namespace {

using test::Bench;
using test::group_of;
using test::handed_over;
using test::small_options;
using testing::ElementsAre;

TEST(RolloutWork, AnEpisodeOfOneTurnIsJustItsCompletion) {
  Bench bench;
  bench.turns = 1;
  bench.work.take(group_of(5, {0, 1, 2}));
  bench.run();
  const auto results = bench.results();
  ASSERT_EQ(results.size(), 3u);
  for (const SampleResult& result : results) {
    EXPECT_TRUE(result.sampled.empty());
    EXPECT_LE(result.ids.size(), 12u);
    EXPECT_EQ(result.reward, 0.25);
  }
  EXPECT_NE(results[0].ids, results[1].ids);
}

TEST(RolloutWork, TurnsFollowEachOtherAndOnlyTheirTokensAreSampled) {
  Bench bench;
  bench.work.take(group_of(5, {0, 1}));
  bench.run();
  const auto results = bench.results();
  ASSERT_EQ(results.size(), 2u);
  for (const SampleResult& result : results) {
    EXPECT_EQ(result.reward, 0.75) << "the sum over the turns";
    ASSERT_EQ(result.sampled.size(), result.ids.size());
    ASSERT_EQ(result.logprobs.size(), result.ids.size());
    ASSERT_EQ(result.versions.size(), result.ids.size());
    int changes = 0;
    for (std::size_t i = 0; i < result.ids.size(); ++i) {
      if (i > 0) changes += result.sampled[i] != result.sampled[i - 1];
      EXPECT_EQ(result.logprobs[i] < 0, result.sampled[i] != 0) << i;
    }
    EXPECT_EQ(changes, 4) << "three sampled stretches, two of the task between them";
    EXPECT_EQ(result.sampled.front(), 1);
    EXPECT_EQ(result.sampled.back(), 1);
    EXPECT_NE(result.text.find("say 1"), std::string::npos);
    EXPECT_NE(result.text.find("say 2"), std::string::npos);
  }
  EXPECT_THAT(bench.replies_seen, ElementsAre(0, 1, 1, 2, 2, 3, 3));
}

// The trainer would score the tokens under what came before them: the sampler must have seen the same.
TEST(RolloutWork, TheLogProbsOfEveryTurnAreThoseOfTheWholeConversation) {
  Bench bench;
  bench.work.take(group_of(5, {0}));
  bench.run();
  const auto results = bench.results();
  ASSERT_EQ(results.size(), 1u);
  ProbeSequence sequence{bench.done[0].prompt_ids, static_cast<std::int32_t>(bench.done[0].prompt_ids.size())};
  sequence.ids.insert(sequence.ids.end(), results[0].ids.begin(), results[0].ids.end());
  const auto scored = bench.work.score({7, {}, 0, {sequence}});
  ASSERT_TRUE(scored) << scored.error().message;
  EXPECT_EQ(scored->probe, 7u);
  for (std::size_t i = 0; i < results[0].ids.size(); ++i) {
    if (results[0].sampled[i] == 0) continue;
    EXPECT_EQ(scored->prefill[0][i], results[0].logprobs[i]) << i;
  }
}

// Handed back at any moment, an episode goes on elsewhere as if nothing had happened.
TEST(RolloutWork, AnEpisodeHandedBackInTheMiddleEndsTheSameElsewhere) {
  Bench whole;
  whole.work.take(group_of(5, {0, 1}));
  whole.run();
  const auto expected = whole.results();
  ASSERT_EQ(expected.size(), 2u);
  for (const int steps : {0, 1, 5, 13, 17, 25, 30}) {
    SCOPED_TRACE(steps);
    const auto results = handed_over([] { return Bench(); }, group_of(5, {0, 1}), steps);
    if (results.empty()) continue;
    ASSERT_EQ(results.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(results[i].ids, expected[i].ids) << steps;
      EXPECT_EQ(results[i].sampled, expected[i].sampled) << steps;
      EXPECT_EQ(results[i].logprobs, expected[i].logprobs) << steps;
      EXPECT_EQ(results[i].reward, expected[i].reward) << steps;
    }
  }
}

TEST(RolloutWork, AnEpisodeThatWouldNotEndIsCutByTheTurnLimit) {
  RolloutWorkerOptions options = small_options();
  options.turns_max = 2;
  Bench bench(options);
  bench.turns = 1000;
  bench.work.take(group_of(5, {0}));
  bench.run();
  const auto results = bench.results();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].finish, static_cast<std::uint8_t>(generate::Finish::kLength));
  EXPECT_EQ(results[0].reward, 0.5);
}

TEST(RolloutWork, AnEpisodeThatOutgrowsTheContextIsCutBeforeTheTurnThatDoesNotFit) {
  RolloutWorkerOptions options = small_options();
  options.engine.context_tokens = 100;
  options.turns_max = 1000;
  Bench bench(options);
  bench.turns = 1000;
  bench.work.take(group_of(5, {0}));
  bench.run();
  EXPECT_TRUE(bench.failed.empty());
  const auto results = bench.results();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].finish, static_cast<std::uint8_t>(generate::Finish::kLength));
  EXPECT_LE(bench.done[0].prompt_ids.size() + results[0].ids.size(), 100u);
  EXPECT_EQ(results[0].sampled.empty() ? 1 : results[0].sampled.back(), 1) << "it ends with what the policy said";
}

TEST(RolloutWork, ANewAttemptOfTheOnlySampleStartsAgain) {
  Bench bench;
  bench.turns = 1;
  bench.work.take(group_of(5, {0}));
  bench.run([&] { return !bench.calls.empty(); });
  GroupWork again = group_of(5, {0});
  again.samples[0].attempt = 2;
  bench.work.take(again);
  bench.run();
  ASSERT_EQ(bench.results().size(), 1u);
  EXPECT_EQ(bench.results()[0].attempt, 2u);
}

TEST(RolloutWork, AFailingTaskFailsTheSampleAndNothingElse) {
  Bench bench;
  bench.work.take(group_of(5, {0, 1}));
  bool broke = false;
  for (int i = 0; i < 500 && (bench.work.advance() || !bench.calls.empty()); ++i) {
    const auto victim = std::find_if(bench.calls.begin(), bench.calls.end(), [](const auto& call) { return call.replies.size() == 2; });
    if (!broke && victim != bench.calls.end()) {
      EnvironmentReplies bad{"rollout/0", 0, {{}}};
      bad.replies[0].call = victim->call;
      bad.replies[0].error = {ErrorCode::kUnavailable, "the program is gone", ""};
      bench.calls.erase(victim);
      bench.work.answer(bad);
      broke = true;
    }
    bench.answer_calls();
  }
  ASSERT_EQ(bench.failed.size(), 1u);
  EXPECT_TRUE(bench.failed[0].samples.at(0).prefix.empty());
  EXPECT_EQ(bench.results().size(), 1u);
}

} // namespace
} // namespace troupe::actors
