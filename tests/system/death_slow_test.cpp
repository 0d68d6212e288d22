// The longer ones of the deaths in whole runs: kill -9 and SIGSTOP of every kind of process at a bad moment. Nothing that was committed or dispatched is lost.
#include "death_support.h"

namespace troupe::test {
namespace {

TEST_F(DeathTest, KilledAgainAndAgainItIsAdoptedEachTime) {
  start_long();
  for (int i = 1; i <= 3; ++i) {
    kill_supervisor();
    resume();
    ASSERT_TRUE(wait_until([&] { return events("adopted").size() == static_cast<std::size_t>(i); }, 20s)) << i;
    std::this_thread::sleep_for(std::chrono::milliseconds(137 * i));
  }
  expect_done(820);
  EXPECT_TRUE(events("rollback").empty());
}

TEST_F(DeathTest, WithoutASupervisorEverythingEndsAndALaterResumeGoesBackToTheCheckpoint) {
  start_long();
  const auto before = pids();
  const auto agent = agents().at(0);
  kill_supervisor();
  EXPECT_TRUE(wait_until([&] { return ::kill(agent, 0) != 0; }, 30s)) << "control.head_wait is 8 s";
  for (const auto& [name, pid] : before) EXPECT_TRUE(wait_until([&] { return ::kill(pid, 0) != 0; }, 5s)) << name;
  resume();
  expect_done(820);
  EXPECT_TRUE(events("adopted").empty());
}

TEST_F(DeathTest, ADeadCheckpointWriterIsReplacedAndTheNextSaveSucceeds) {
  start_long();
  const auto commits = events("checkpoint").size();
  ASSERT_EQ(::kill(pids().at("checkpoint_writer/0"), SIGKILL), 0);
  EXPECT_TRUE(wait_until([&] { return events("checkpoint").size() > commits; }, 60s));
  expect_done(820);
}

} // namespace
} // namespace troupe::test
