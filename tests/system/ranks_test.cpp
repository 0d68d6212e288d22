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
  start({"--set", "trainer.ranks=2", "--set", "stage.rl.steps=110", "--set", "checkpoint.every=20", "--set", "task.reward={type=\"regex\",pattern=\"7$\"}"});
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
  expect_done(130);
  EXPECT_EQ(events("rollback").size(), 2u) << "one epoch for each";
  EXPECT_EQ(summary()["restarts"], 2);
}

// The weights hardly move: a step's loss says which data it saw, and whether all of it.
TEST_F(RanksTest, AStateOfTwoRanksIsAStateOfOneAndTheOtherWayRound) {
  constexpr std::uint64_t kSteps = 120;
  const std::string text = kExperiment;
  std::ofstream(folder / "small.toml") << text.substr(0, text.find("[[stage]]", text.find("[[stage]]") + 1)); // the sft stage alone
  const std::vector<std::string> settings{"--set", "stage.sft.steps=" + std::to_string(kSteps), "--set", "stage.sft.optim.lr=1e-6", "--set", "stage.sft.data.tokens_per_batch=1024"};
  start(settings);
  ASSERT_EQ(finish(), 0);
  const auto whole = losses(kSteps);
  ASSERT_EQ(whole.size(), kSteps);
  std::size_t told_apart = 0;
  for (std::uint64_t step = 2; step <= kSteps; ++step) told_apart += std::abs(whole.at(step) / whole.at(step - 1) - 1) > 1e-4 ? 1 : 0;
  EXPECT_GT(told_apart, kSteps * 9 / 10);
  fs::rename(run_dir(), run_dir() + ".whole");

  auto with_two = settings;
  with_two.insert(with_two.end(), {"--set", "trainer.ranks=2"});
  start(with_two);
  for (const char* next : {"trainer.ranks=1", "trainer.ranks=2"}) {
    const auto done = losses(kSteps).size();
    ASSERT_TRUE(wait_until([&] { return learning(done + 10); }));
    ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
    ASSERT_EQ(finish(), 0);
    run_pid = spawn({"run", "--resume", run_dir(), "--set", next}, folder / "run2.out", folder / "run.err");
  }
  ASSERT_EQ(finish(), 0);
  const auto pieces = losses(kSteps);
  ASSERT_EQ(pieces.size(), kSteps);
  for (const auto& [step, loss] : whole) EXPECT_NEAR(pieces.at(step) / loss, 1, 1e-5) << "the same data in step " << step;
  EXPECT_EQ(summary()["exit"], "done");
  EXPECT_EQ(events("mesh_ready").size(), 3u);
}

} // namespace
} // namespace troupe::test
