#include "actors/supervisor/probe.h"

#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

constexpr PolicyVersion v(std::uint64_t step) { return {1, step}; }

// Whoever scores a sequence gives its own ids as log-probs: equal exactly when the sequences are.
ProbeScored answer(const ScoreProbe& order, const std::string& worker) {
  ProbeScored out{worker, order.id, order.version, {}, {}};
  for (const ProbeSequence& s : order.sequences) out.prefill.emplace_back(s.ids.begin(), s.ids.end());
  if (worker != "rank/0") out.decode = out.prefill;
  return out;
}

TEST(Probe, ComparesEveryWorkerWithTheRankWhoeverAnswersFirst) {
  Probe probe(2);
  EXPECT_FALSE(probe.order(v(1), 0)) << "nothing was delivered yet";
  probe.delivered({1, 2}, {3, 4});
  const auto order = probe.order(v(2), 0);
  ASSERT_TRUE(order);
  EXPECT_TRUE(probe.scored(answer(*order, "rollout/0")).empty());
  auto outcomes = probe.scored(answer(*order, "rank/0"));
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].worker, "rollout/0");
  EXPECT_EQ(outcomes[0].tokens, 8u);
  EXPECT_EQ(outcomes[0].diff_max, 0);
  ProbeScored wrong = answer(*order, "rollout/1");
  wrong.decode[0][3] += 0.5f;
  outcomes = probe.scored(wrong);
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].diff_max, 0.5);
}

// A worker pulls step 1 after step 2 was published, while the rank's scores of step 2 are still on their way.
TEST(Probe, ALatePullerIsAskedWhatTheOthersWere) {
  Probe probe(1);
  probe.delivered({1}, {2});
  const ScoreProbe first = probe.order(v(1), 0).value();
  probe.delivered({1}, {3});
  const ScoreProbe second = probe.order(v(2), 0).value();
  probe.delivered({1}, {4});
  EXPECT_EQ(probe.order(v(1), 0)->id, first.id);
  EXPECT_EQ(probe.order(v(2), 0)->id, second.id);
  EXPECT_TRUE(probe.scored(answer(second, "rank/0")).empty());
  EXPECT_TRUE(probe.scored(answer(first, "rank/0")).empty());
  for (const ScoreProbe& order : {first, second}) {
    const auto outcomes = probe.scored(answer(order, "rollout/0"));
    ASSERT_EQ(outcomes.size(), 1u);
    EXPECT_EQ(outcomes[0].diff_max, 0);
  }
}

TEST(Probe, AVersionThatWasLetGoIsNotAskedAnew) {
  Probe probe(1);
  probe.delivered({1}, {2});
  const ScoreProbe old = probe.order(v(1), 0).value();
  for (std::uint64_t step = 2; step < 8; ++step) ASSERT_TRUE(probe.order(v(step), 0));
  EXPECT_FALSE(probe.order(v(1), 0));
  EXPECT_TRUE(probe.scored(answer(old, "rank/0")).empty());
  EXPECT_TRUE(probe.scored(answer(old, "rollout/0")).empty());
}

// A head that took over asks other sequences at the same version; the answers to the one before it still arrive.
TEST(Probe, AnswersToAnEarlierHeadAreNotCompared) {
  Probe before(1), after(1);
  before.delivered({1}, {2});
  after.delivered({1}, {3});
  const ScoreProbe asked_before = before.order(v(5), 0).value(), asked_after = after.order(v(5), 0).value();
  EXPECT_NE(asked_before.id, asked_after.id);
  EXPECT_TRUE(after.scored(answer(asked_before, "rank/0")).empty());
  EXPECT_TRUE(after.scored(answer(asked_after, "rollout/0")).empty());
  EXPECT_EQ(after.scored(answer(asked_after, "rank/0")).size(), 1u);
}

} // namespace
} // namespace troupe::actors
