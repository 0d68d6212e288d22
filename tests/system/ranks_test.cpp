// Runs with two ranks: they train as one does, a death costs one epoch, and a state of two ranks is a state of one.
#include <gmock/gmock.h>

#include "death_support.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

class RanksTest : public DeathTest {
 protected:
  std::string log_of(const std::string& worker) const { return read_file(fs::path(run_dir()) / "logs" / (worker + ".log")).value_or(""); }
  // The loss of each step of the first stage that was reported.
  std::map<std::uint64_t, double> losses(std::uint64_t steps) const {
    std::map<std::uint64_t, double> all;
    std::ifstream file(fs::path(run_dir()) / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const json m = json::parse(line, nullptr, false); m.is_object() && m.contains("loss/mean") && m["step"] <= steps) all[m["step"]] = m["loss/mean"];
    return all;
  }
  bool learning(std::uint64_t step) const {
    const json s = status();
    return s.is_object() && s["stage"] == "sft" && s["step"] >= step;
  }
};

TEST_F(RanksTest, ADeadRankCostsOneEpochAndTheOtherOneLivesOn) {
  start({"--set", "trainer.ranks=2", "--set", "stage.rl.steps=150", "--set", "checkpoint.every=20"});
  ASSERT_TRUE(wait_until([&] { return training_rl(25); }));
  const auto before = pids();
  ASSERT_EQ(before.count("rank/0") + before.count("rank/1"), 2u);
  ASSERT_EQ(::kill(before.at("rank/1"), SIGKILL), 0);
  ASSERT_TRUE(wait_until([&] { return events("mesh_ready").size() == 2; }, 20s));
  EXPECT_EQ(pids()["rank/0"], before.at("rank/0"));
  const auto said = log_of("rank-0.0");
  EXPECT_THAT(said, HasSubstr(", operation "));
  EXPECT_THAT(said, HasSubstr("of rank/0 in mesh 1 (2 ranks), failed: "));
  EXPECT_THAT(said, HasSubstr("rank/1"));

  const auto trained = steps_reported().size();
  ASSERT_TRUE(wait_until([&] { return steps_reported().size() > trained + 5; }, 20s));
  ASSERT_EQ(::kill(before.at("rank/0"), SIGKILL), 0); // the one that publishes and saves
  ASSERT_TRUE(wait_until([&] { return events("mesh_ready").size() == 3; }, 20s));
  expect_done(170);
  EXPECT_EQ(events("rollback").size(), 2u) << "one epoch for each";
  EXPECT_EQ(summary()["restarts"], 2);
}

TEST_F(RanksTest, AStateOfTwoRanksIsAStateOfOneAndTheOtherWayRound) {
  constexpr std::uint64_t kSteps = 300;
  const std::vector<std::string> settings{"--set", "stage.sft.steps=" + std::to_string(kSteps), "--set", "stage.rl.steps=2"};
  start(settings);
  ASSERT_EQ(finish(), 0);
  const auto whole = losses(kSteps);
  ASSERT_EQ(whole.size(), kSteps);
  fs::rename(run_dir(), run_dir() + ".whole");

  auto with_two = settings;
  with_two.insert(with_two.end(), {"--set", "trainer.ranks=2"});
  start(with_two);
  for (const char* next : {"trainer.ranks=1", "trainer.ranks=2"}) {
    const auto done = losses(kSteps).size();
    ASSERT_TRUE(wait_until([&] { return learning(done + 20); }));
    ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
    ASSERT_EQ(finish(), 0);
    run_pid = spawn({"run", "--resume", run_dir(), "--set", next}, folder / "run2.out", folder / "run.err");
  }
  ASSERT_EQ(finish(), 0);
  const auto pieces = losses(kSteps);
  ASSERT_EQ(pieces.size(), kSteps);
  for (const auto& [step, loss] : whole) EXPECT_NEAR(pieces.at(step) / loss, 1, step == 1 ? 1e-5 : 1e-3) << "the same data in step " << step;
  const json s = summary();
  expect_sound_summary(s);
  EXPECT_EQ(s["exit"], "done");
}

} // namespace
} // namespace troupe::test
