#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "protocol/director_bench.h"

namespace troupe::protocol {
namespace {

using namespace rollout;
using testing::ElementsAre;
using testing::HasSubstr;

RolloutPlan small_plan(std::uint32_t prompts = 1, std::uint32_t samples = 4, std::uint32_t staleness = 0) {
  RolloutPlan p;
  p.prompts_per_step = prompts;
  p.samples_per_prompt = samples;
  p.staleness = staleness;
  p.steps = 100;
  return p;
}

SampleName sample(std::uint64_t prompt, std::uint32_t index) { return {WorkKind::kTrain, 0, {prompt, index}}; }

TEST(DirectorFaults, AFailingSampleIsRetriedThenItsGroupIsCancelled) {  // V20 a
  DirectorBench bench;
  bench.begin(small_plan(1, 2), 1);
  std::vector<Effect> last;
  for (std::uint32_t attempt = 1; attempt <= 3; ++attempt) {
    ASSERT_EQ(bench.running.at(sample(0, 0)).attempt, attempt);
    bench.running.erase(sample(0, 0));
    const std::string reason = "the environment said no, " + std::to_string(attempt);
    last = bench.send(SampleFailed{rollout_worker(0), 0, sample(0, 0), attempt, reason});
    EXPECT_THAT(all<Note>(last).back().text, HasSubstr("failed: " + reason));
  }
  EXPECT_TRUE(has<CancelSamples>(last)) << "the other sample of the group is stopped";
  EXPECT_THAT(all<DropResults>(last)[0].prompt, 0u);
  const LedgerCounters c = bench.director.stats().prompts;
  EXPECT_EQ(c.cancelled_by[static_cast<std::size_t>(CancelReason::kAttempts)], 1u);
  EXPECT_TRUE(bench.running.contains(sample(1, 0))) << "the next prompt took the slot";
}

TEST(DirectorFaults, ASampleThatFailsTwiceInTheSameWayIsPoison) {
  DirectorBench bench;
  bench.begin(small_plan(1, 2), 1);
  const auto fail = [&](SampleName name, std::uint32_t attempt, const std::string& reason) {
    bench.running.erase(name);
    return bench.send(SampleFailed{rollout_worker(0), 0, name, attempt, reason});
  };
  fail(sample(0, 0), 1, "division by zero");
  fail(sample(0, 1), 1, "division by zero"); // another sample: its own first failure
  EXPECT_TRUE(bench.running.contains(sample(0, 0)) && bench.running.contains(sample(0, 1)));
  const auto last = fail(sample(0, 0), 2, "division by zero");
  EXPECT_THAT(all<Note>(last).front().text, HasSubstr("twice in the same way"));
  EXPECT_FALSE(bench.running.contains(sample(0, 1))) << "its group goes with it";
  EXPECT_EQ(bench.director.stats().prompts.cancelled_by[static_cast<std::size_t>(CancelReason::kAttempts)], 1u);
  EXPECT_TRUE(bench.running.contains(sample(1, 0)));
}

TEST(DirectorFaults, ARunWhoseEverySampleFailsEndsWithCounts) {  // V20 a
  DirectorBench bench;
  bench.begin(small_plan(1, 1), 1);
  std::vector<Effect> last;
  for (int i = 0; i < 100 && !has<Fail>(last); ++i) {
    const auto [name, a] = *bench.running.begin();
    bench.running.erase(name);
    last = bench.send(SampleFailed{a.worker, 0, name, a.attempt, "throws"});
  }
  ASSERT_TRUE(has<Fail>(last));
  EXPECT_THAT(all<Fail>(last)[0].reason, HasSubstr("10 failed"));
}

TEST(DirectorSpares, ASpareTakesOverFromADeadOrFrozenWorkerAndTheReplacementIsTheNextSpare) {
  DirectorBench bench;
  bench.send(ServeWith{2});
  bench.begin(small_plan(4, 2, 1), 3);
  const auto busy = [&] {
    std::set<WorkerId> ids;
    for (const auto& [name, a] : bench.running) ids.insert(a.worker);
    return ids;
  };
  EXPECT_THAT(busy(), ElementsAre(rollout_worker(0), rollout_worker(1)));
  EXPECT_EQ(bench.director.stats().workers_routable, 2u);
  EXPECT_EQ(bench.director.workers().find(rollout_worker(2))->holds, bench.director.served()) << "a spare is warm";

  std::erase_if(bench.running, [](const auto& e) { return e.second.worker == rollout_worker(1); });
  bench.send(WorkerGone{rollout_worker(1), "killed by signal 9"});
  EXPECT_THAT(busy(), ElementsAre(rollout_worker(0), rollout_worker(2))) << "at once: nothing has to start or pull";
  bench.send(WorkerJoined{rollout_worker(1, 1), {}});
  EXPECT_TRUE(bench.director.workers().find(rollout_worker(1, 1))->spare);
  EXPECT_FALSE(bench.director.workers().find(rollout_worker(2))->spare) << "who took over keeps the work";

  bench.send(WorkerSuspected{rollout_worker(0)});
  EXPECT_FALSE(bench.director.workers().find(rollout_worker(1, 1))->spare);
  bench.send(WorkerCleared{rollout_worker(0)});
  EXPECT_EQ(bench.director.stats().workers_routable, 2u) << "one of three is too many again";
  EXPECT_FALSE(bench.director.workers().find(rollout_worker(0))->spare) << "it still has its samples";

  bench.send(ServeWith{3}); // scale
  EXPECT_EQ(bench.director.stats().workers_routable, 3u);
  bench.send(ServeWith{0});
  EXPECT_EQ(bench.director.stats().workers_routable, 0u);
}

TEST(DirectorFaults, ADeadWorkersSamplesAreReissuedAndTheGroupCompletes) {  // V20 b
  DirectorBench bench;
  bench.begin(small_plan(2, 4), 2);
  // Two groups, one on each worker; the second worker dies after delivering one sample.
  ASSERT_EQ(bench.running.at(sample(1, 0)).worker, rollout_worker(1));
  bench.done(sample(1, 0));
  std::erase_if(bench.running, [](const auto& e) { return e.second.worker == rollout_worker(1); });
  bench.send(WorkerGone{rollout_worker(1), "killed by signal 9"});
  for (std::uint32_t i = 1; i < 4; ++i) {
    EXPECT_EQ(bench.running.at(sample(1, i)).worker, rollout_worker(0));
    EXPECT_EQ(bench.running.at(sample(1, i)).attempt, 2u);
  }
  EXPECT_FALSE(bench.running.contains(sample(1, 0))) << "a delivered sample is not computed again";
  bench.finish_running();
  ASSERT_EQ(bench.steps.size(), 1u);
  EXPECT_THAT(bench.steps[0].prompts, ElementsAre(0, 1));
  bench.step_done();
  const LedgerCounters c = bench.director.stats().prompts;
  EXPECT_EQ(c.dispatched, c.delivered + c.cancelled() + c.in_flight);
  EXPECT_EQ(c.cancelled(), 0u);
}

TEST(DirectorFaults, AWorkerKilledDuringAPullDoesNotHoldTheRound) {  // V20 c
  DirectorBench bench;
  bench.begin(small_plan(1, 2), 2);
  bench.finish_running();
  bench.answer_pull = false;
  bench.step_done();
  bench.send(WorkerPulled{rollout_worker(0), {0, 1}});
  EXPECT_TRUE(bench.running.empty());
  bench.send(WorkerGone{rollout_worker(1), "killed by signal 9"});
  EXPECT_EQ(bench.running.size(), 2u) << "the round is over, the slot free, the work goes to the survivor";
}

TEST(DirectorFaults, AFrozenWorkerIsReportedUnfitAtItsPullDeadline) {  // V20 c
  RolloutOptions options;
  options.pull_deadline = 20s;
  DirectorBench bench(options);
  bench.begin(small_plan(1, 2), 2);
  bench.finish_running();
  bench.answer_pull = false;
  bench.step_done();
  bench.send(WorkerPulled{rollout_worker(0), {0, 1}});
  EXPECT_FALSE(has<WorkerUnfit>(bench.wait(19s)));
  const auto effects = bench.wait(1s);
  ASSERT_EQ(all<WorkerUnfit>(effects).size(), 1u);
  EXPECT_EQ(all<WorkerUnfit>(effects)[0].worker, rollout_worker(1));
  EXPECT_EQ(bench.running.size(), 2u);
}

TEST(DirectorFaults, ARestartedWorkerServesOnlyWithTheCurrentVersion) {  // V20 d
  DirectorBench bench;
  bench.begin(small_plan(1, 2), 2);
  bench.send(WorkerGone{rollout_worker(1), "crash"});
  for (int step = 0; step < 3; ++step) {
    bench.finish_running();
    bench.step_done();
  }
  bench.finish_running();
  bench.answer_pull = false;
  const auto joined = bench.send(WorkerJoined{rollout_worker(1, 1), {}});
  ASSERT_EQ(all<TellWorkerPull>(joined).size(), 1u);
  EXPECT_EQ(all<TellWorkerPull>(joined)[0].version, (PolicyVersion{0, 3}));
  bench.send(WorkerGone{rollout_worker(0), "crash"});
  bench.send(WorkerPulled{rollout_worker(1, 1), {0, 2}});
  bench.step_done();
  EXPECT_TRUE(bench.running.empty()) << "nobody holds the current version";
  bench.send(WorkerPulled{rollout_worker(1, 1), {0, 4}});
  EXPECT_EQ(bench.running.size(), 2u);
  EXPECT_EQ(bench.running.begin()->second.worker, rollout_worker(1, 1));
}

// A joiner behind a slow link: pulls take longer than steps.
TEST(DirectorFaults, ASlowPullerIsToldOneVersionAtATimeAndCatchesUp) {
  DirectorBench bench;
  bench.begin(small_plan(1, 2), 1);
  bench.answer_pull = false;
  const WorkerId slow = rollout_worker(1), quick = rollout_worker(0);
  ASSERT_EQ(all<TellWorkerPull>(bench.send(WorkerJoined{slow, {}})).size(), 1u);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    bench.finish_running();
    for (const TellWorkerPull& told : all<TellWorkerPull>(bench.step_done()))
      EXPECT_EQ(told.worker, quick) << "the slow one is still at its first pull";
    bench.send(WorkerPulled{quick, {0, step}});
  }
  const auto after = all<TellWorkerPull>(bench.send(WorkerPulled{slow, {0, 0}}));
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(after[0].version, (PolicyVersion{0, 3})) << "overtaken: the newest one next";
  bench.finish_running();
  bench.step_done();
  bench.send(WorkerPulled{quick, {0, 4}});
  bench.finish_running();
  bench.step_done();
  EXPECT_EQ(bench.publications.back(), (PolicyVersion{0, 4})) << "the next version waits for the slow one";
  bench.send(WorkerPulled{slow, {0, 3}});
  const auto caught_up = bench.send(WorkerPulled{slow, {0, 4}});
  EXPECT_EQ(all<WorkerServing>(caught_up).size(), 1u);
  bench.finish_running();
  bench.step_done();
  EXPECT_EQ(bench.publications.back(), (PolicyVersion{0, 5}));
}

TEST(DirectorFaults, ALostCompletionIsNamedAndReissued) {  // S18
  RolloutOptions options;
  options.sample_silence = 30s;
  DirectorBench bench(options);
  bench.begin(small_plan(1, 2), 2);
  const WorkerId owner = bench.running.at(sample(0, 1)).worker;
  bench.done(sample(0, 0));
  bench.running.erase(sample(0, 1));  // its completion never arrives
  bench.now += 20s;
  bench.send(WorkerProgress{owner, {}});  // the worker lives, but does not name the sample
  EXPECT_FALSE(has<Stalled>(bench.wait(9s)));
  const auto effects = bench.wait(1s);
  ASSERT_EQ(all<Stalled>(effects).size(), 1u);
  const Stalled stalled = all<Stalled>(effects)[0];
  ASSERT_EQ(stalled.items.size(), 1u);
  EXPECT_EQ(stalled.items[0].name, sample(0, 1));
  EXPECT_EQ(stalled.items[0].owner, owner);
  EXPECT_EQ(bench.running.at(sample(0, 1)).attempt, 2u);
  EXPECT_NE(bench.running.at(sample(0, 1)).worker, owner) << "another worker is preferred";
  bench.finish_running();
  EXPECT_TRUE(bench.step_requested());
}

TEST(DirectorFaults, ASampleThatIsReportedRunningIsLeftAlone) {
  DirectorBench bench;
  bench.begin(small_plan(1, 1), 1);
  for (int i = 0; i < 10; ++i) {
    bench.now += 50s;
    bench.send(WorkerProgress{rollout_worker(0), {sample(0, 0)}});
    EXPECT_FALSE(has<Stalled>(bench.wait(1s)));
  }
}

TEST(DirectorFaults, WithoutAnyProgressTheRunFailsAndNamesWhatItWaitsFor) {  // S18, NeMo-RL 3488
  RolloutOptions options;
  options.progress_deadline = 300s;
  options.sample_silence = 1h;
  DirectorBench bench(options);
  bench.begin(small_plan(1, 2), 1);
  EXPECT_FALSE(has<Fail>(bench.wait(299s)));
  const auto effects = bench.wait(1s);
  ASSERT_TRUE(has<Fail>(effects));
  EXPECT_THAT(all<Fail>(effects)[0].reason, HasSubstr("sample 0/1 on rollout/0.0"));
}

TEST(DirectorFaults, WithoutWorkersItWaits) {
  DirectorBench bench;
  bench.begin(small_plan(), 0);
  EXPECT_FALSE(has<Fail>(bench.wait(10h))) << "scale rollout=0 pauses generation";
  bench.send(WorkerJoined{rollout_worker(0), {}});
  EXPECT_EQ(bench.running.size(), 4u);
}

TEST(DirectorFaults, ADrainingWorkerRefusesHandsBackAndIsReleased) {
  DirectorBench bench;
  bench.begin(small_plan(2, 2), 2);
  const WorkerId leaving = bench.running.at(sample(1, 0)).worker;
  const WorkerId other = bench.running.at(sample(0, 0)).worker;
  ASSERT_NE(leaving, other);
  EXPECT_FALSE(has<WorkerReleased>(bench.send(WorkerDraining{leaving})));
  bench.done(sample(1, 0));
  const auto effects = bench.send(SampleReturned{leaving, 0, sample(1, 1), 1, {0, 0}, true});
  EXPECT_TRUE(has<WorkerReleased>(effects));
  EXPECT_EQ(bench.running.at(sample(1, 1)).worker, other);
  EXPECT_TRUE(bench.running.at(sample(1, 1)).resume);
  EXPECT_EQ(bench.running.at(sample(1, 1)).attempt, 1u) << "leaving costs no attempt";
  bench.send(WorkerGone{leaving, "drained"});
  bench.finish_running();
  EXPECT_TRUE(bench.step_requested());
}

TEST(DirectorFaults, ADispatchThatMeetsADrainingWorkerGoesElsewhere) {
  DirectorBench bench;
  bench.begin(small_plan(2, 2), 2);
  Work work;
  work.prompt = 1;
  work.samples = {{0, 1, false}, {1, 1, false}};
  const WorkerId leaving = bench.running.at(sample(1, 0)).worker;
  bench.send(WorkRefused{leaving, work, ErrorCode::kDraining});
  EXPECT_NE(bench.running.at(sample(1, 0)).worker, leaving);
  EXPECT_NE(bench.running.at(sample(1, 1)).worker, leaving);
  EXPECT_EQ(bench.running.at(sample(1, 1)).attempt, 1u);
  bench.send(WorkRefused{leaving, work, ErrorCode::kDraining});  // the message came twice
  bench.finish_running();
  EXPECT_TRUE(bench.step_requested());
}

TEST(DirectorFaults, AFullWorkerIsAskedAgainLater) {
  DirectorBench bench;
  bench.begin(small_plan(1, 2), 1);
  Work work;
  work.samples = {{0, 1, false}, {1, 1, false}};
  bench.running.clear();
  bench.send(WorkRefused{rollout_worker(0), work, ErrorCode::kResourceExhausted});
  EXPECT_TRUE(bench.running.empty());
  bench.wait(1s);
  EXPECT_EQ(bench.running.size(), 2u);
}

TEST(DirectorFaults, ASuspectGetsNothingNewUntilItIsCleared) {
  DirectorBench bench;
  bench.begin(small_plan(1, 2), 1);
  bench.send(WorkerSuspected{rollout_worker(0)});
  bench.finish_running();
  bench.step_done();
  EXPECT_TRUE(bench.running.empty());
  bench.send(WorkerCleared{rollout_worker(0)});
  EXPECT_EQ(bench.running.size(), 2u);
}

TEST(DirectorFaults, RollbackDispatchesAnewAndFencesTheOldEpoch) {
  DirectorBench bench;
  bench.begin(small_plan(1, 2, 1), 1);
  bench.finish_prompt(0);
  bench.step_done();
  const LedgerSnapshot commit = bench.director.snapshot();
  bench.finish_prompt(1);
  bench.step_done();
  bench.send(TrainerLost{"rank/0 died"});
  const auto late = bench.running.begin()->first;
  bench.send(RolledBack{{1, 1}, commit});
  EXPECT_TRUE(bench.running.empty());
  RolloutPlan p = small_plan(1, 2, 1);
  bench.send(BeginTraining{p, 1, {1, 1}});
  EXPECT_EQ(bench.publications.back(), (PolicyVersion{1, 1}));
  EXPECT_TRUE(bench.running.contains(sample(1, 0))) << "prompt 1 was trained in the epoch that is lost";
  bench.send(SampleDone{rollout_worker(0), 0, late, 1, {0, 2}, 1, true});
  EXPECT_EQ(bench.director.stats().fenced, 1u);
  bench.finish_running();
  ASSERT_TRUE(bench.step_requested());
  EXPECT_EQ(bench.steps.back().from, (PolicyVersion{1, 1}));
  const LedgerCounters c = bench.director.stats().prompts;
  EXPECT_EQ(c.dispatched, c.delivered + c.cancelled() + c.in_flight);
  EXPECT_EQ(c.delivered, 1u);
}

TEST(DirectorFaults, WithTheTrainerDeadRolloutsFillTheirBufferAndWait) {
  DirectorBench bench;
  bench.begin(small_plan(1, 2, 2), 1);
  bench.send(TrainerLost{"rank/0 died"});
  bench.finish_running();
  EXPECT_TRUE(bench.steps.empty());
  EXPECT_TRUE(bench.running.empty()) << "B groups are open";
  EXPECT_FALSE(has<Fail>(bench.wait(10h)));
  bench.send(TrainerReady{{0, 0}});  // re-adopted in the same epoch
  EXPECT_TRUE(bench.step_requested());
}

TEST(DirectorFaults, UnansweredCommandsAreSentAgain) {
  DirectorBench bench;
  bench.answer_publish = false;
  bench.begin(small_plan(1, 2), 1);
  EXPECT_EQ(bench.publications.size(), 1u);
  bench.wait(5s);
  EXPECT_EQ(bench.publications.size(), 2u);
  bench.answer_publish = true;
  bench.send(Published{{0, 0}});
  bench.finish_running();
  const std::size_t before = bench.steps.size();
  bench.wait(5s);
  ASSERT_EQ(bench.steps.size(), before + 1);
  EXPECT_EQ(bench.steps.back().prompts, bench.steps[before - 1].prompts);
  bench.step_done();
  bench.send(StepDone{{0, 1}});  // the answer to the repetition
  EXPECT_EQ(bench.director.stats().steps_done, 1u);
}

TEST(DirectorFaults, AWorkerMayHoldAVersionBeforeItsPublicationIsHeardOf) {  // found by the simulator, seed 24
  DirectorBench bench;
  bench.begin(small_plan(1, 2), 1);
  bench.finish_running();
  bench.answer_publish = false;
  bench.step_done();
  bench.send(WorkerPulled{rollout_worker(0), {0, 1}});  // its lease was on the newest slot
  bench.answer_pull = false;
  bench.send(WorkerJoined{rollout_worker(1), {}});
  bench.send(WorkerPulled{rollout_worker(1), {0, 1}});
  EXPECT_TRUE(bench.running.empty());
  EXPECT_TRUE(has<WorkerServing>(bench.send(Published{{0, 1}})));
  EXPECT_EQ(bench.running.size(), 2u);
}

TEST(DirectorFaults, ARewardThatIsNotANumberIsAFailure) {
  DirectorBench bench;
  bench.begin(small_plan(1, 2), 1);
  bench.done(sample(0, 0), std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(bench.running.at(sample(0, 0)).attempt, 2u);
}

TEST(DirectorFaults, WorkersUpToTheLimitAndLeastLoadedFirst) {
  RolloutOptions options;
  options.workers_max = 3;
  options.worker_samples_max = 4;
  DirectorBench bench(options);
  bench.begin(small_plan(8, 2), 4);
  EXPECT_EQ(bench.director.workers().all().size(), 3u);
  std::map<WorkerId, int> load;
  for (const auto& [name, a] : bench.running) ++load[a.worker];
  for (const auto& [worker, samples] : load) EXPECT_EQ(samples, 4) << to_string(worker);
  EXPECT_EQ(load.size(), 3u);
  EXPECT_EQ(bench.director.stats().waiting, 2u) << "8 groups of 2, room for 6";
}

// A clock that is put back makes a timer come early. It is spent, so the next one must be asked for.
TEST(DirectorFaults, AWakeThatComesEarlyAsksForTheNextOne) {
  DirectorBench bench;
  bench.begin(small_plan(1, 2), 1);
  for (const Duration back : {10ms, 4000ms}) {
    bench.now -= back;
    EXPECT_EQ(all<ArmTimer>(bench.send(Wake{})).size(), 1u) << "put back by " << format_duration(back);
  }
}

} // namespace
} // namespace troupe::protocol
