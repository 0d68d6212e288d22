#include <gtest/gtest.h>

#include "protocol/director_bench.h"

namespace troupe::protocol {
namespace {

using namespace rollout;

RolloutPlan small_plan() {
  RolloutPlan p;
  p.prompts_per_step = 1;
  p.samples_per_prompt = 2;
  p.staleness = 1;
  p.steps = 10;
  return p;
}

SampleName problem(std::uint32_t evaluation, std::uint64_t index) {
  return {WorkKind::kEvaluation, evaluation, {index, 0}};
}

TEST(DirectorEvaluation, PublishesTheVersionItIsAskedFor) {  // between sft steps: no loop is on
  DirectorBench bench;
  bench.send(TrainerReady{{0, 0}});
  bench.send(WorkerJoined{rollout_worker(0), {}});
  bench.send(Evaluate{1, {0, 30}, 3});
  EXPECT_EQ(bench.publications.back(), (PolicyVersion{0, 30}));
  ASSERT_EQ(bench.running.size(), 3u);
  bench.done(problem(1, 2), 1);
  bench.done(problem(1, 0), 0.5);
  const auto done = all<EvaluationDone>(bench.done(problem(1, 1), 0));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].version, (PolicyVersion{0, 30}));
  EXPECT_EQ(done[0].answered, 3u);
  EXPECT_EQ(done[0].reward_sum, 1.5);
}

TEST(DirectorEvaluation, HoldsLaterVersionsBackUntilItIsOver) {
  DirectorBench bench;
  bench.begin(small_plan(), 1);
  bench.finish_prompt(0);
  bench.send(Evaluate{1, {0, 1}, 2});
  bench.step_done();
  EXPECT_EQ(bench.director.served(), (PolicyVersion{0, 1}));
  ASSERT_TRUE(bench.running.contains(problem(1, 0)));
  bench.finish_prompt(1);
  ASSERT_TRUE(bench.step_requested()) << "training goes on";
  bench.step_done();
  EXPECT_EQ(bench.director.served(), (PolicyVersion{0, 1})) << "version 2 waits for the evaluation";
  bench.done(problem(1, 0));
  EXPECT_EQ(bench.director.served(), (PolicyVersion{0, 1}));
  const auto done = all<EvaluationDone>(bench.done(problem(1, 1)));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].version, (PolicyVersion{0, 1}));
  EXPECT_EQ(bench.director.served(), (PolicyVersion{0, 2}));
}

TEST(DirectorEvaluation, HasItsOwnCountersAndSurvivesDeadWorkers) {
  DirectorBench bench;
  bench.send(TrainerReady{{0, 0}});
  bench.send(WorkerJoined{rollout_worker(0), {}});
  bench.send(Evaluate{1, {0, 0}, 2});
  for (std::uint32_t incarnation = 0; incarnation < 2; ++incarnation) {
    bench.running.clear();
    bench.send(WorkerGone{rollout_worker(0, incarnation), "crash"});
    bench.send(WorkerJoined{rollout_worker(0, incarnation + 1), {}});
    EXPECT_EQ(bench.running.at(problem(1, 1)).attempt, incarnation + 2);
  }
  bench.done(problem(1, 0), 1);
  bench.running.clear();
  const auto done = all<EvaluationDone>(bench.send(WorkerGone{rollout_worker(0, 2), "crash"}));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].answered, 1u);
  EXPECT_EQ(done[0].failed, 1u) << "its three attempts are used up";
  const RolloutStats s = bench.director.stats();
  EXPECT_EQ(s.evaluation_dispatched, s.evaluation_delivered + s.evaluation_cancelled + s.evaluation_in_flight);
  EXPECT_EQ(s.evaluation_delivered, 1u);
  EXPECT_EQ(s.prompts.dispatched, 0u);
}

TEST(DirectorEvaluation, ResultsOfAnEarlierOneAreNotTaken) {
  DirectorBench bench;
  bench.send(TrainerReady{{0, 0}});
  bench.send(WorkerJoined{rollout_worker(0), {}});
  bench.send(Evaluate{1, {0, 0}, 1});
  bench.send(Evaluate{2, {0, 0}, 1});
  EXPECT_TRUE(has<EvaluationDone>(bench.done(problem(1, 0))));
  EXPECT_FALSE(has<EvaluationDone>(bench.send(SampleDone{rollout_worker(0), 0, problem(1, 0), 1, {0, 0}, 1, true})));
  EXPECT_TRUE(has<EvaluationDone>(bench.done(problem(2, 0))));
}

TEST(DirectorEvaluation, ATrainerThatMovedOnPublishesWhatItHolds) {  // sft steps went on while the order was lost
  DirectorBench bench;
  bench.answer_publish = false;
  bench.send(TrainerReady{{0, 0}});
  bench.send(WorkerJoined{rollout_worker(0), {}});
  bench.send(Published{{0, 2}});
  EXPECT_EQ(bench.director.served(), (PolicyVersion{0, 2}));
  bench.answer_publish = true;
  bench.send(Evaluate{1, {0, 2}, 1});
  EXPECT_TRUE(has<EvaluationDone>(bench.done(problem(1, 0))));
}

TEST(DirectorEvaluation, EmptyOneEndsAtOnce) {
  DirectorBench bench;
  bench.send(TrainerReady{{0, 0}});
  EXPECT_TRUE(has<EvaluationDone>(bench.send(Evaluate{1, {0, 0}, 0})));
}

} // namespace
} // namespace troupe::protocol
