// Deaths in whole runs: kill -9 and SIGSTOP of every kind of process at a bad moment. Nothing that was committed or dispatched is lost.
#include "death_support.h"

namespace troupe::test {
namespace {

TEST_F(DeathTest, ANewSupervisorAdoptsTheProcessesOfTheOneThatWasKilled) {
  start_long();
  const auto before = pids();
  ASSERT_EQ(before.size(), 5u);
  kill_supervisor();
  resume();
  ASSERT_TRUE(wait_until([&] { return !events("adopted").empty(); }, 20s));
  EXPECT_TRUE(wait_until([&] { return pids() == before; }, 10s)) << "nobody was restarted";
  expect_done(820);
  EXPECT_TRUE(events("rollback").empty());
  EXPECT_EQ(summary()["restarts"], 0);
  EXPECT_LT(summary()["eval"]["before"].get<double>(), 1.0) << "what was measured before the death is not forgotten";
  const auto steps = steps_reported();
  ASSERT_EQ(steps.size(), 820u) << "no step is made twice, none goes unreported";
  for (std::size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], i + 1);
}

TEST_F(DeathTest, ADeadRankGoesBackToTheNewestCheckpointInANewEpoch) {
  start_long();
  ASSERT_EQ(::kill(pids().at("rank/0"), SIGKILL), 0);
  expect_done(820);
  EXPECT_EQ(events("rollback").size(), 1u);
  EXPECT_EQ(summary()["restarts"], 1);
}

TEST_F(DeathTest, ADeadNodeAgentIsReplacedWithAllItsWorkers) {
  start_long();
  const auto before = pids();
  const auto agent = agents().at(0);
  ASSERT_EQ(::kill(agent, SIGKILL), 0);
  for (const auto& [name, pid] : before) EXPECT_TRUE(wait_until([&] { return ::kill(pid, 0) != 0; }, 5s)) << name << " died with its agent";
  expect_done(820);
  EXPECT_EQ(agents().size(), 2u);
}

TEST_F(DeathTest, AFrozenRolloutWorkerIsTakenOutAndReplaced) {
  start_long();
  const pid_t victim = pids().at("rollout/1");
  const auto frozen_at = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(victim, SIGSTOP), 0);
  ASSERT_TRUE(wait_until([&] { return !events("worker_suspected").empty(); }, 20s));
  ASSERT_TRUE(wait_until([&] { return serving("rollout/1", 1); }, 30s));
  EXPECT_LT(std::chrono::steady_clock::now() - frozen_at, 20s);
  EXPECT_NE(::kill(victim, 0), 0) << "it is killed before it is replaced";
  expect_done(820);
}

} // namespace
} // namespace troupe::test
