// A run with two ranks, to the end: a death costs one epoch, and the other rank lives on.
#include <gmock/gmock.h>

#include "death_support.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

class RanksTest : public DeathTest {
 protected:
  std::string log_of(const std::string& worker) const { return read_file(fs::path(run_dir()) / "logs" / (worker + ".log")).value_or(""); }
};

TEST_F(RanksTest, ADeadRankCostsOneEpochAndTheOtherOneLivesOn) {
  start({"--set", "trainer.ranks=2", "--set", "stage.rl.steps=500", "--set", "checkpoint.every=25", "--set", "task.reward={type=\"regex\",pattern=\"7$\"}"});
  ASSERT_TRUE(wait_until([&] { return training_rl(25); }));
  const auto before = pids();
  ASSERT_EQ(before.count("rank/0") + before.count("rank/1"), 2u);
  ASSERT_EQ(::kill(before.at("rank/1"), SIGKILL), 0);
  ASSERT_TRUE(wait_until([&] { return events("mesh_ready").size() == 2; }, 20s));
  EXPECT_EQ(pids()["rank/0"], before.at("rank/0"));
  EXPECT_THAT(log_of("rank-0.0"), HasSubstr("mesh 1 is over: rank/1 is "));

  const auto trained = steps_reported().size();
  ASSERT_TRUE(wait_until([&] { return steps_reported().size() > trained + 5; }, 20s));
  ASSERT_EQ(::kill(before.at("rank/0"), SIGKILL), 0); // the one that publishes and saves
  ASSERT_TRUE(wait_until([&] { return events("mesh_ready").size() == 3; }, 20s));
  expect_done(520);
  EXPECT_EQ(events("rollback").size(), 2u) << "one epoch for each";
  EXPECT_EQ(summary()["restarts"], 2);
}

} // namespace
} // namespace troupe::test
