// The longer ones of the runs with two ranks: a frozen rank, a lost supervisor, the same bits twice, a state that changes its number of ranks.
#include <gmock/gmock.h>

#include "death_support.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

class RanksSlowTest : public DeathTest {
 protected:
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
  static std::vector<std::string> two_ranks() { return {"--set", "trainer.ranks=2", "--set", "task.reward={type=\"regex\",pattern=\"7$\"}"}; }
};

TEST_F(RanksSlowTest, AFrozenRankIsKilledAndTheOtherOneDoesNotWaitForItsDeadline) {
  start_long(two_ranks());
  const auto before = pids();
  const auto frozen_at = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(before.at("rank/1"), SIGSTOP), 0);
  ASSERT_TRUE(wait_until([&] { return events("mesh_ready").size() == 2; }, 30s));
  EXPECT_LT(std::chrono::steady_clock::now() - frozen_at, 20s) << "comm.deadline is 30 s";
  EXPECT_EQ(pids()["rank/0"], before.at("rank/0"));
  EXPECT_THAT(read_file(fs::path(run_dir()) / "logs" / "rank-0.0.log").value_or(""), testing::ContainsRegex(", operation [0-9]+ of rank/0 in mesh 1 .2 ranks., failed: rank/1 is"));
  expect_done(820);
  EXPECT_EQ(events("rollback").size(), 1u);
}

// The backstop: nobody but the other rank notices anything.
TEST_F(RanksSlowTest, AFrozenRankIsNamedWithinTheDeadlineByTheOtherOne) {
  auto settings = two_ranks();
  for (const char* set : {"comm.deadline=\"2s\"", "control.timeout=\"8s\""}) settings.insert(settings.end(), {"--set", set});
  start_long(settings);
  const auto frozen_at = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(pids().at("rank/0"), SIGSTOP), 0);
  ASSERT_TRUE(wait_until([&] { return !events("mesh_broken").empty(); }, 20s));
  EXPECT_LT(std::chrono::steady_clock::now() - frozen_at, 5s);
  EXPECT_THAT(events("mesh_broken").at(0)["error"].get<std::string>(), HasSubstr("no sign of life from rank/0"));
  expect_done(820);
  EXPECT_EQ(events("rollback").size(), 1u) << "the report and the death are one loss";
}

TEST_F(RanksSlowTest, ANewSupervisorAdoptsBothRanks) {
  start_long(two_ranks());
  const auto before = pids();
  kill_supervisor();
  resume();
  ASSERT_TRUE(wait_until([&] { return !events("adopted").empty(); }, 20s));
  for (const char* rank : {"rank/0", "rank/1"}) EXPECT_EQ(pids()[rank], before.at(rank));
  EXPECT_EQ(events("mesh_ready").size(), 2u) << "connected anew, with the state they held";
  expect_done(820);
  EXPECT_TRUE(events("rollback").empty());
}

TEST_F(RanksSlowTest, WithARankThatDiedMeanwhileTheRunGoesBackToTheCheckpoint) {
  start_long(two_ranks());
  const auto before = pids();
  kill_supervisor();
  ASSERT_EQ(::kill(before.at("rank/1"), SIGKILL), 0);
  std::this_thread::sleep_for(500ms);
  resume();
  ASSERT_TRUE(wait_until([&] { return !events("not_adopted").empty(); }, 20s));
  EXPECT_TRUE(wait_until([&] { return events("mesh_ready").size() == 2; }, 20s));
  EXPECT_EQ(pids()["rank/0"], before.at("rank/0"));
  expect_done(820);
}

TEST_F(RanksSlowTest, TwoRunsOfTwoRanksLeaveTheSameBits) {
  std::string weights;
  for (const int run : {1, 2}) {
    auto settings = two_ranks();
    for (const char* set : {"stage.rl.rl.staleness=0", "stage.rl.steps=60"}) settings.insert(settings.end(), {"--set", set});
    start(settings);
    ASSERT_EQ(finish(), 0);
    const auto exported = read_file(fs::path(run_dir()) / "export" / "model.safetensors").value_or("");
    ASSERT_FALSE(exported.empty());
    if (run == 1) weights = exported;
    else EXPECT_TRUE(weights == exported);
    fs::rename(run_dir(), run_dir() + "." + std::to_string(run));
  }
}

// The weights hardly move: a step's loss says which data it saw, and whether all of it.
TEST_F(RanksSlowTest, AStateOfTwoRanksIsAStateOfOneAndTheOtherWayRound) {
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
