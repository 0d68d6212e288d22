// The longer ones of the deaths in whole runs: kill -9 and SIGSTOP of every kind of process at a bad moment. Nothing that was committed or dispatched is lost.
#include <sys/mount.h>

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

TEST_F(DeathTest, ASpareTakesOverFromAKilledWorkerAtOnce) {
  start_long({"--set", "rollout.spares=1"});
  const auto spares = [&] {
    std::vector<std::string> names;
    for (const json& a : actors())
      if (a["role"] == "rollout" && a["spare"] == true) names.push_back(a["name"]);
    return names;
  };
  ASSERT_TRUE(wait_until([&] { return spares().size() == 1; }));
  const std::string spare = spares()[0];
  const std::string victim = spare == "rollout/0" ? "rollout/1" : "rollout/0";
  ASSERT_EQ(::kill(pids().at(victim), SIGKILL), 0);
  EXPECT_TRUE(wait_until([&] { return spares() != std::vector{spare}; }, 2s)) << "it is warm: nothing starts, nothing is pulled";
  EXPECT_TRUE(wait_until([&] { return spares() == std::vector{victim}; }, 20s)) << "the replacement is the next spare";
  expect_done(820);
}

// The whole disk of the run, as small as a run may have: a save that does not fit says so and leaves nothing, the run goes on, and the next one fits.
TEST_F(DeathTest, AFullDiskCostsASaveAndNotTheRun) {
  const fs::path disk = folder / "disk";
  fs::create_directories(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=24m") != 0) GTEST_SKIP() << "a small disk cannot be mounted here (this needs root)";
  struct Unmount {
    fs::path disk;
    ~Unmount() { ::umount2(disk.c_str(), MNT_DETACH); }
  } const unmount{disk};
  place = disk / "run";
  start({"--set", "stage.rl.steps=1500", "--set", "checkpoint.every=100"});
  ASSERT_TRUE(wait_until([&] { return events("checkpoint").size() >= 1; }));
  const fs::path ballast = disk / "ballast";
  std::ofstream(ballast) << std::string(32 << 20, 'x'); // as much as fits
  const auto said = [&] { return read_file(folder / "run.err").value_or(""); };
  EXPECT_TRUE(wait_until([&] { return said().find("No space left on device") != std::string::npos && said().find("checkpoint of e0.s") != std::string::npos; }, 30s)) << said();
  fs::remove(ballast);
  const auto saved = events("checkpoint").size();
  EXPECT_TRUE(wait_until([&] { return events("checkpoint").size() > saved; }, 30s)) << "the next save fits again";
  ASSERT_EQ(finish(), 0) << said();
  expect_sound_summary(summary());
  EXPECT_EQ(summary()["steps"], 1520);
  EXPECT_TRUE(events("rollback").empty());
  for (const auto& entry : fs::directory_iterator(fs::path(run_dir()) / "checkpoints")) EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

} // namespace
} // namespace troupe::test
