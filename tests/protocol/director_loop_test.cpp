#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/director_bench.h"

namespace troupe::protocol {
namespace {

using namespace rollout;
using testing::ElementsAre;

RolloutPlan plan(std::uint32_t prompts, std::uint32_t samples, std::uint32_t staleness, double window = 0.3,
                 std::uint64_t steps = 6) {
  RolloutPlan p;
  p.prompts_per_step = prompts;
  p.samples_per_prompt = samples;
  p.staleness = staleness;
  p.window_fraction = window;
  p.steps = steps;
  return p;
}

TEST(RolloutPlan, BoundsFollowTheFormulas) {
  RolloutPlan p = plan(8, 8, 3);
  EXPECT_EQ(buffer_groups(p), 32u);
  EXPECT_EQ(window_groups(p), 9u);  // floor(9.6)
  EXPECT_EQ(worst_age(p), 4u);      // 3 + ceil(8 / 8)
  p.window_fraction = 0;
  EXPECT_EQ(window_groups(p), 1u);
  EXPECT_EQ(worst_age(p), 3u);
  p = plan(8, 8, 0, 1.0);
  EXPECT_EQ(window_groups(p), 1u) << "on policy there is no look-ahead";
  EXPECT_EQ(worst_age(p), 0u);
  p.max_age = 2;
  EXPECT_EQ(age_bound(p), 2u);
}

TEST(DirectorLoop, TrainsInThePromptsOrderWhateverTheArrival) {
  DirectorBench bench;
  bench.begin(plan(3, 2, 0), 2);
  for (const std::uint64_t prompt : {2, 0, 1}) bench.finish_prompt(prompt);
  ASSERT_EQ(bench.steps.size(), 1u);
  EXPECT_THAT(bench.steps[0].prompts, ElementsAre(0, 1, 2));
}

TEST(DirectorLoop, OnPolicyGenerationWaitsForThePull) {  // S20
  DirectorBench bench;
  bench.begin(plan(2, 2, 0, 1.0, 3), 2);
  for (std::uint64_t step = 0; step < 3; ++step) {
    bench.finish_running();
    ASSERT_EQ(bench.steps.size(), step + 1);
    EXPECT_EQ(bench.steps.back().age_max, 0u);
    bench.answer_pull = false;
    bench.step_done();
    EXPECT_TRUE(bench.running.empty()) << "nothing is generated before the workers hold the new version";
    bench.answer_pull = true;
    bench.wait(10s);  // the order to pull is sent again
  }
  EXPECT_EQ(bench.director.stats().age_max, 0u);
}

TEST(DirectorLoop, SlotsAreFreedOnlyAfterThePull) {
  DirectorBench bench;
  bench.begin(plan(2, 1, 1, 0), 2);
  bench.answer_pull = false;
  for (std::uint64_t prompt = 0; prompt < 2; ++prompt)
    bench.send(SampleDone{rollout_worker(0), 0, {WorkKind::kTrain, 0, {prompt, 0}}, 1, {0, 0}, 1, true});
  EXPECT_TRUE(bench.steps.empty()) << "groups of one sample have no signal";
  EXPECT_EQ(bench.director.stats().prompts.dispatched, 6u)
      << "but their slots were free at once: the workers hold what the trainer holds";
}

TEST(DirectorLoop, SlotsOfAStepWaitForEveryWorker) {
  DirectorBench bench;
  bench.begin(plan(1, 2, 1, 0), 2);
  bench.finish_prompt(0);
  bench.answer_pull = false;
  bench.step_done();
  EXPECT_EQ(bench.director.stats().slots_held, 1u);
  bench.send(WorkerPulled{rollout_worker(0), {0, 1}});
  EXPECT_EQ(bench.director.stats().prompts.dispatched, 2u) << "the other worker still pulls";
  bench.send(WorkerPulled{rollout_worker(1), {0, 1}});
  EXPECT_EQ(bench.director.stats().prompts.dispatched, 3u);
}

TEST(DirectorLoop, PublishesBeforeTheNextStepAndNeverTwoAtOnce) {
  DirectorBench bench;
  bench.begin(plan(1, 2, 2, 0), 1);
  bench.finish_running();  // three groups are ready
  bench.answer_pull = false;
  const auto first = bench.step_done();
  // The copy is ordered before the next step, which runs while the worker pulls.
  std::vector<int> order;
  for (const Effect& effect : first) {
    if (std::holds_alternative<StartPublish>(effect)) order.push_back(1);
    if (std::holds_alternative<RequestTrainStep>(effect)) order.push_back(2);
  }
  EXPECT_THAT(order, ElementsAre(1, 2));
  bench.step_done();
  EXPECT_EQ(bench.publications.size(), 2u) << "the pull of version 1 is not over";
  EXPECT_FALSE(bench.step_requested()) << "a step would overwrite weights nobody has copied";
  bench.send(WorkerPulled{rollout_worker(0), {0, 1}});
  EXPECT_EQ(bench.publications.back(), (PolicyVersion{0, 2}));
  EXPECT_TRUE(bench.step_requested());
}

TEST(DirectorLoop, TheWindowIsAnchoredOnTheOldestGroup) {
  DirectorBench bench;
  bench.begin(plan(2, 2, 1, 0.5), 1);  // B = 4, W = 2
  bench.finish_prompt(1);
  bench.finish_prompt(2);
  bench.finish_prompt(3);
  EXPECT_TRUE(bench.steps.empty()) << "2 and 3 are beyond the window of the oldest group, 0";
  bench.finish_prompt(0);
  ASSERT_EQ(bench.steps.size(), 1u);
  EXPECT_THAT(bench.steps[0].prompts, ElementsAre(0, 1));
}

/// Every arrival order of the open groups, to a depth, for small plans: the age at use never passes the bound, and
/// the bound is reached by some order (it is tight).
struct AgeSearch {
  RolloutPlan p;
  std::uint64_t worst = 0;
  std::uint64_t budget = 6000;

  void explore(const DirectorBench& bench) {
    worst = std::max(worst, bench.director.stats().age_max);
    if (budget == 0 || bench.steps.size() >= p.steps) return;
    std::set<std::uint64_t> prompts;
    for (const auto& [name, a] : bench.running) prompts.insert(name.id.prompt);
    for (const std::uint64_t prompt : prompts) {
      if (budget == 0) return;
      --budget;
      DirectorBench next = bench;
      next.finish_prompt(prompt);
      if (next.step_requested()) next.step_done();
      ASSERT_LE(next.director.stats().prompts.in_flight + next.director.stats().slots_held, buffer_groups(p));
      explore(next);
    }
  }
};

TEST(DirectorLoop, AgeNeverPassesTheBoundInAnyOrder) {
  for (const auto& [prompts, staleness, window] : std::vector<std::tuple<std::uint32_t, std::uint32_t, double>>{
           {1, 0, 1.0}, {2, 0, 0.5}, {1, 1, 0.0}, {1, 1, 1.0}, {2, 1, 0.5}, {2, 1, 1.0}, {1, 2, 0.7}, {1, 3, 0.5}}) {
    AgeSearch search{plan(prompts, 1, staleness, window, 8)};
    search.p.drop_zero_signal = false;  // groups of one sample
    DirectorBench bench;
    bench.begin(search.p, 1);
    search.explore(bench);
    const std::string where =
        "P " + std::to_string(prompts) + ", S " + std::to_string(staleness) + ", f " + std::to_string(window);
    EXPECT_LE(search.worst, worst_age(search.p)) << where;
    EXPECT_GE(search.worst, staleness) << where;
  }
}

TEST(DirectorLoop, ZeroSignalGroupsAreDroppedAndRefilled) {
  DirectorBench bench;
  bench.begin(plan(2, 2, 0), 1);
  bench.done({WorkKind::kTrain, 0, {0, 0}}, 1);
  const auto effects = bench.done({WorkKind::kTrain, 0, {0, 1}}, 1);
  ASSERT_EQ(all<DropResults>(effects).size(), 1u);
  bench.finish_prompt(1);
  EXPECT_TRUE(bench.steps.empty());
  bench.finish_prompt(2);  // the refill
  ASSERT_EQ(bench.steps.size(), 1u);
  EXPECT_THAT(bench.steps[0].prompts, ElementsAre(1, 2));
  const LedgerCounters c = bench.director.stats().prompts;
  EXPECT_EQ(c.cancelled_by[static_cast<std::size_t>(CancelReason::kZeroSignal)], 1u);
  EXPECT_EQ(c.dispatched, c.delivered + c.cancelled() + c.in_flight);
}

TEST(DirectorLoop, TenEmptyBatchesInARowEndTheStage) {
  DirectorBench bench;
  bench.begin(plan(2, 2, 0), 1);
  std::vector<Effect> last;
  int groups = 0;
  while (!has<Fail>(last)) {
    ASSERT_LT(groups, 30);
    const SampleName name = bench.running.begin()->first;
    last = bench.done(name, 0);
    if (bench.running.count(name) == 0 && name.id.sample == 1) ++groups;
  }
  EXPECT_EQ(groups, 20) << "10 batches of 2 groups";
  EXPECT_THAT(all<Fail>(last)[0].reason, testing::HasSubstr("20 with equal rewards"));
}

TEST(DirectorLoop, ATrainableGroupResetsTheCountOfEmptyBatches) {
  DirectorBench bench;
  bench.begin(plan(2, 2, 0, 0, 100), 1);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 15; ++i) {
      const std::uint64_t prompt = bench.running.begin()->first.id.prompt;
      bench.done({WorkKind::kTrain, 0, {prompt, 0}}, 0);
      ASSERT_FALSE(has<Fail>(bench.done({WorkKind::kTrain, 0, {prompt, 1}}, 0)));
    }
    bench.finish_running();
    ASSERT_TRUE(bench.step_requested());
    bench.step_done();
  }
}

TEST(DirectorLoop, TheRestOfTheStreamIsTrainedWhenNoPromptIsLeft) {  // V16 a: accepted, rejected, accepted
  DirectorBench bench;
  RolloutPlan p = plan(3, 2, 0);
  p.prompt_limit = 3;
  bench.begin(p, 1);
  bench.finish_prompt(0);
  bench.done({WorkKind::kTrain, 0, {1, 0}}, 1);
  bench.done({WorkKind::kTrain, 0, {1, 1}}, 1);
  bench.finish_prompt(2);
  ASSERT_EQ(bench.steps.size(), 1u);
  EXPECT_THAT(bench.steps[0].prompts, ElementsAre(0, 2));
  EXPECT_TRUE(bench.steps[0].exhausted);
  const auto done = all<TrainingDone>(bench.step_done());
  ASSERT_EQ(done.size(), 1u);
  EXPECT_TRUE(done[0].exhausted);
}

TEST(DirectorLoop, TheStageEndsWithItsLastVersionServedAndNothingOpen) {
  DirectorBench bench;
  bench.begin(plan(2, 2, 1, 0.3, 3), 2);
  std::vector<Effect> last;
  for (int step = 0; step < 3; ++step) {
    bench.finish_running();
    ASSERT_TRUE(bench.step_requested());
    last = bench.step_done();
  }
  ASSERT_TRUE(has<TrainingDone>(last));
  EXPECT_EQ(bench.director.served(), (PolicyVersion{0, 3}));
  const LedgerCounters c = bench.director.stats().prompts;
  EXPECT_EQ(c.dispatched, 6u) << "no group is started that the last step cannot use";
  EXPECT_EQ(c.delivered, 6u);
}

TEST(DirectorLoop, SlowPromptsAreNotLost) {  // S10: trained share equals dispatched share
  DirectorBench bench;
  RolloutPlan p = plan(4, 1, 2, 0.3, 25);
  p.drop_zero_signal = false;
  bench.begin(p, 2);
  std::map<std::uint64_t, int> due;  // odd prompts take ten times as long
  std::uint64_t slow = 0;
  std::uint64_t trained = 0;
  for (int tick = 0; bench.director.stats().steps_done < p.steps; ++tick) {
    ASSERT_LT(tick, 5000);
    std::vector<SampleName> names;
    for (const auto& [name, a] : bench.running) {
      if (!due.contains(name.id.prompt)) due[name.id.prompt] = tick + (name.id.prompt % 2 != 0 ? 10 : 1);
      if (due[name.id.prompt] <= tick) names.push_back(name);
    }
    for (const auto& name : names) bench.done(name);
    if (!bench.step_requested()) continue;
    for (const std::uint64_t prompt : bench.steps.back().prompts) slow += prompt % 2;
    trained += bench.steps.back().prompts.size();
    bench.step_done();
  }
  EXPECT_EQ(trained, 100u);
  EXPECT_NEAR(static_cast<double>(slow) / static_cast<double>(trained), 0.5, 0.03);
  EXPECT_EQ(bench.director.stats().prompts.cancelled(), 0u) << "pacing discards nothing";
}

TEST(DirectorLoop, OutdatedGroupsAreCancelledBeforeThePull) {
  RolloutPlan p = plan(1, 2, 2, 1.0, 6);  // B = 3, W = 3
  p.max_age = 1;                          // tighter than the loop guarantees
  DirectorBench bench;
  bench.begin(p, 1);
  bench.finish_prompt(1);
  bench.step_done();
  bench.finish_prompt(2);
  const auto effects = bench.step_done();
  std::vector<int> order;
  for (const Effect& effect : effects) {
    if (const auto* c = std::get_if<CancelSamples>(&effect); c != nullptr && c->names[0].id.prompt == 0)
      order.push_back(1);
    if (std::holds_alternative<TellWorkerPull>(effect)) order.push_back(2);
  }
  EXPECT_THAT(order, ElementsAre(1, 2)) << "prompt 0 is two versions old now and was stopped before the worker pulls";
  EXPECT_EQ(bench.director.stats().prompts.cancelled_by[static_cast<std::size_t>(CancelReason::kStale)], 1u);
}

TEST(DirectorLoop, StopDrainsAndThePendingPromptsAreKept) {
  DirectorBench bench;
  bench.begin(plan(2, 2, 1), 2);
  bench.finish_prompt(0);
  bench.finish_prompt(1);
  ASSERT_TRUE(bench.step_requested());
  EXPECT_FALSE(has<Drained>(bench.send(Drain{}))) << "a step is running";
  const auto effects = bench.step_done();
  EXPECT_TRUE(has<Drained>(effects));
  EXPECT_FALSE(has<DispatchWork>(effects));
  const LedgerSnapshot snapshot = bench.director.snapshot();
  EXPECT_THAT(snapshot.pending, ElementsAre(2, 3));
  EXPECT_TRUE(has<CancelAll>(bench.send(End{})));
  EXPECT_EQ(bench.director.stats().prompts.in_flight, 0u);
  EXPECT_THAT(bench.director.snapshot().pending, ElementsAre(2, 3));
}

TEST(DirectorLoop, PauseStartsNothingUntilResume) {
  DirectorBench bench;
  bench.begin(plan(1, 2, 1), 1);
  bench.send(Pause{});
  bench.finish_running();
  EXPECT_TRUE(bench.steps.empty());
  bench.wait(20min);
  const auto effects = bench.send(Resume{});
  EXPECT_TRUE(has<RequestTrainStep>(effects));
  EXPECT_FALSE(has<Fail>(effects));
}

TEST(DirectorLoop, TheNextStageWaitsForTheWeightsOfTheOneBefore) {
  DirectorBench bench;
  bench.send(TrainerReady{{0, 0}});
  bench.send(WorkerJoined{rollout_worker(0), {}});
  bench.answer_pull = false;
  auto effects = bench.send(BeginTraining{plan(1, 2, 1), 0, {0, 50}});  // a supervised stage made 50 steps
  EXPECT_EQ(bench.publications.back(), (PolicyVersion{0, 50}));
  EXPECT_TRUE(bench.running.empty());
  bench.send(WorkerPulled{rollout_worker(0), {0, 50}});
  EXPECT_EQ(bench.running.size(), 4u);
}

} // namespace
} // namespace troupe::protocol
