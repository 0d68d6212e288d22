#include "protocol/run_director.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "protocol/support.h"

namespace troupe::protocol {
namespace {

using namespace run;
using testing::ElementsAre;
using testing::HasSubstr;

/// Plays a run: everything that is asked for succeeds, and is written down as a word.
class Play {
 public:
  explicit Play(std::vector<StageSpec> stages, RunOptions options = {}) : core(options, std::move(stages)) {}

  std::vector<Effect> send(const Event& event) {
    std::vector<Effect> seen;
    std::vector<Event> queue{event};
    while (!queue.empty()) {
      const Event next = queue.front();
      queue.erase(queue.begin());
      for (Effect& effect : core.handle(next, now)) {
        std::visit([&](const auto& e) { answer(e, queue); }, effect);
        seen.push_back(std::move(effect));
      }
    }
    return seen;
  }
  void rl_step() { send(StepDone{{core.epoch(), core.position().version.step + 1}}); }

  RunDirector core;
  TimePoint now = at(0s);
  std::vector<std::string> story;
  bool answer_steps = true;
  bool answer_saves = true;
  bool answer_mesh = true;
  std::optional<Ended> ended;
  std::optional<Save> last_save;

 private:
  template <class E>
  void answer(const E&, std::vector<Event>&) {}
  void answer(const BuildMesh& e, std::vector<Event>& queue) {
    story.push_back("mesh " + to_string(e.version));
    if (answer_mesh) queue.push_back(MeshReady{e.version});
  }
  void answer(const StartStage& e, std::vector<Event>&) {
    story.push_back("stage " + std::to_string(e.stage) + " at " + std::to_string(e.steps_done));
  }
  void answer(const TrainStep& e, std::vector<Event>& queue) {
    story.push_back("step");
    if (answer_steps) queue.push_back(StepDone{{e.from.epoch, e.from.step + 1}});
  }
  void answer(const StartEvaluation& e, std::vector<Event>& queue) {
    story.push_back("eval " + to_string(e.version));
    queue.push_back(EvaluationDone{e.evaluation});
  }
  void answer(const Save& e, std::vector<Event>& queue) {
    last_save = e;
    story.push_back("save " + to_string(e.version));
    if (answer_saves) queue.push_back(Saved{e.version, e.position});
  }
  void answer(const StartExport&, std::vector<Event>& queue) {
    story.push_back("export");
    queue.push_back(StageDone{});
  }
  void answer(const DrainRollouts&, std::vector<Event>&) { story.push_back("drain"); }
  void answer(const Rollback& e, std::vector<Event>&) {
    story.push_back("rollback to epoch " + std::to_string(e.epoch));
  }
  void answer(const Ended& e, std::vector<Event>&) { ended = e; }
};

StageSpec stage(StageKind kind, std::uint64_t steps = 0) {
  StageSpec s;
  s.kind = kind;
  s.steps = steps;
  return s;
}

TEST(RunDirector, PlaysTheStagesInOrder) {
  StageSpec rl = stage(StageKind::kRl, 2);
  rl.evaluate_before = true;
  rl.evaluate_after = true;
  Play play({stage(StageKind::kSft, 2), rl, stage(StageKind::kEval), stage(StageKind::kExport)});
  play.send(Start{});
  EXPECT_THAT(play.story,
              ElementsAre("mesh e0.s0", "stage 0 at 0", "step", "step", "save e0.s2", "eval e0.s2", "stage 1 at 0"));
  play.story.clear();
  play.rl_step();
  play.rl_step();
  play.send(StageDone{});
  EXPECT_THAT(play.story,
              ElementsAre("eval e0.s4", "save e0.s4", "stage 2 at 0", "eval e0.s4", "stage 3 at 0", "export"));
  ASSERT_TRUE(play.ended);
  EXPECT_EQ(play.ended->exit, RunExit::kDone);
  EXPECT_EQ(play.core.position().version, (PolicyVersion{0, 4}));
}

TEST(RunDirector, EvaluatesAndSavesEveryNStepsSaveBeforeTheNextStep) {
  StageSpec sft = stage(StageKind::kSft, 5);
  sft.checkpoint_every = 2;
  sft.evaluate_every = 3;
  Play play({sft});
  play.send(Start{});
  EXPECT_THAT(play.story, ElementsAre("mesh e0.s0", "stage 0 at 0", "step", "step", "save e0.s2", "step", "eval e0.s3",
                                      "step", "save e0.s4", "step", "save e0.s5"));
  EXPECT_EQ(play.ended->exit, RunExit::kDone);
}

TEST(RunDirector, ResumesWhereTheCommitWas) {
  StageSpec rl = stage(StageKind::kRl, 20);
  rl.evaluate_before = true;
  Play play({stage(StageKind::kSft, 2), rl});
  RunPosition position;
  position.stage = 1;
  position.stage_step = 10;
  position.version = {3, 12};
  const auto effects = play.send(Start{*position_from_json(to_json(position)), 4});
  EXPECT_EQ(all<BuildMesh>(effects)[0].from_commit, (PolicyVersion{3, 12}));
  EXPECT_THAT(play.story, ElementsAre("mesh e4.s12", "stage 1 at 10")) << "no evaluation in the middle of a stage";
  play.rl_step();
  EXPECT_EQ(play.core.position().version, (PolicyVersion{4, 13}));
}

TEST(RunDirector, FirstStopFinishesTheStepAndSaves) {
  Play play({stage(StageKind::kSft, 100)});
  play.answer_steps = false;
  play.send(Start{});
  play.send(Stop{});
  EXPECT_FALSE(play.ended) << "the step is running";
  play.send(StepDone{{0, 1}});
  ASSERT_TRUE(play.ended);
  EXPECT_EQ(play.ended->exit, RunExit::kStopped);
  EXPECT_EQ(play.last_save->position.stage_step, 1u);
}

TEST(RunDirector, StopOfAnRlStageDrainsThenSaves) {
  Play play({stage(StageKind::kRl, 100)});
  play.send(Start{});
  play.rl_step();
  play.send(Stop{});
  play.rl_step();  // was running
  EXPECT_FALSE(play.ended);
  play.send(Drained{});
  ASSERT_TRUE(play.ended);
  EXPECT_EQ(play.ended->exit, RunExit::kStopped);
  EXPECT_EQ(play.last_save->version, (PolicyVersion{0, 2}));
}

TEST(RunDirector, SecondStopEndsAtOnce) {
  Play play({stage(StageKind::kRl, 100)});
  play.send(Start{});
  play.send(Stop{});
  play.send(Stop{});
  ASSERT_TRUE(play.ended);
  EXPECT_EQ(play.ended->exit, RunExit::kStopped);
  EXPECT_FALSE(play.last_save);
}

TEST(RunDirector, AStopThatCannotSaveSaysSo) {
  Play play({stage(StageKind::kRl, 100)});
  play.send(Start{});
  play.rl_step();
  play.answer_saves = false;
  play.send(Stop{});
  play.send(Drained{});
  for (int i = 0; i < 10 && !play.ended; ++i) {
    play.send(NotSaved{{0, 1}, "disk full"});
    play.now += 1s;
    play.send(Wake{});
  }
  ASSERT_TRUE(play.ended);
  EXPECT_EQ(play.ended->exit, RunExit::kFailed);
  EXPECT_THAT(play.ended->reason, HasSubstr("disk full"));

  Play hung({stage(StageKind::kRl, 100)});
  hung.send(Start{});
  hung.send(Stop{});
  hung.now += 2min;
  hung.send(Wake{});
  EXPECT_EQ(hung.ended->exit, RunExit::kFailed) << "the deadline of a stop";
}

TEST(RunDirector, ALostRankRollsBackToTheNewestCommit) {
  StageSpec rl = stage(StageKind::kRl, 100);
  rl.checkpoint_every = 2;
  Play play({rl});
  play.send(Start{});
  for (int i = 0; i < 3; ++i) play.rl_step();
  play.story.clear();
  play.send(RankLost{"rank/0.0", ""});
  EXPECT_THAT(play.story, ElementsAre("rollback to epoch 1", "mesh e1.s2", "stage 0 at 2"));
  EXPECT_EQ(play.core.position().version, (PolicyVersion{1, 2}));
  play.send(StepDone{{0, 4}});
  EXPECT_EQ(play.core.position().version, (PolicyVersion{1, 2})) << "the step of the lost epoch is fenced";
  play.rl_step();
  EXPECT_EQ(play.core.position().version, (PolicyVersion{1, 3}));
}

TEST(RunDirector, WithoutACommitItStartsAnew) {
  Play play({stage(StageKind::kRl, 100)});
  play.send(Start{});
  play.rl_step();
  const auto effects = play.send(RankLost{"rank/0.0", ""});
  EXPECT_EQ(all<BuildMesh>(effects)[0].from_commit, std::nullopt);
  EXPECT_EQ(play.core.position().version, (PolicyVersion{1, 0}));
}

TEST(RunDirector, ASaveOfTheLostEpochIsForgotten) {
  StageSpec rl = stage(StageKind::kRl, 100);
  rl.checkpoint_every = 1;
  Play play({rl});
  play.send(Start{});
  play.rl_step();
  play.answer_saves = false;
  play.rl_step();
  const Save lost = *play.last_save;
  play.send(RankLost{"rank/0.0", ""});
  play.send(NotSaved{lost.version, "fenced"});
  play.send(Saved{lost.version, lost.position});
  EXPECT_EQ(play.core.position().version, (PolicyVersion{1, 1}));
  play.answer_saves = true;
  play.rl_step();
  EXPECT_EQ(play.last_save->version, (PolicyVersion{1, 2}));
}

TEST(RunDirector, TheSameStepFailingTwiceTheSameWayIsPoison) {
  Play play({stage(StageKind::kRl, 100)});
  play.send(Start{});
  play.send(RankLost{"rank/0", "the loss is not a number"});
  EXPECT_FALSE(play.ended);
  play.send(RankLost{"rank/0", "the loss is not a number"});
  ASSERT_TRUE(play.ended);
  EXPECT_THAT(play.ended->reason, HasSubstr("step 1 failed twice in the same way"));
}

TEST(RunDirector, KillsFromOutsideEndOnlyByTheirNumber) {
  RunOptions options;
  options.rollbacks_max = 3;
  Play play({stage(StageKind::kRl, 100)}, options);
  play.send(Start{});
  for (int i = 0; i < 3; ++i) play.send(RankLost{"rank/0." + std::to_string(i), ""});
  EXPECT_FALSE(play.ended);
  play.send(RankLost{"rank/0.3", ""});
  ASSERT_TRUE(play.ended);
  EXPECT_EQ(play.ended->exit, RunExit::kFailed);
  EXPECT_THAT(play.ended->reason, HasSubstr("rank/0.0: killed; rank/0.1: killed"));
}

TEST(RunDirector, AMeshThatIsNeverReadyIsRebuilt) {
  Play play({stage(StageKind::kRl, 100)});
  play.answer_mesh = false;
  play.send(Start{});
  play.now += 2min;
  play.send(Wake{});
  EXPECT_EQ(play.story.back(), "mesh e1.s0");
  play.send(MeshReady{{0, 0}});
  EXPECT_EQ(play.story.back(), "mesh e1.s0") << "the mesh of the old epoch";
  for (int i = 2; i < 5; ++i) {
    play.now += 2min;
    play.send(Wake{});
    EXPECT_FALSE(play.ended) << "no step was under way: none is poison";
    EXPECT_EQ(play.story.back(), "mesh e" + std::to_string(i) + ".s0");
  }
}

TEST(RunDirector, ABrokenRunFailsWithItsReason) {
  Play play({stage(StageKind::kRl, 100)});
  play.send(Start{});
  play.send(Broken{"more than 5 restarts"});
  EXPECT_EQ(play.ended->exit, RunExit::kFailed);
  EXPECT_EQ(play.ended->reason, "more than 5 restarts");
  EXPECT_TRUE(play.send(StepDone{{0, 1}}).empty()) << "nothing follows";
}

} // namespace
} // namespace troupe::protocol
