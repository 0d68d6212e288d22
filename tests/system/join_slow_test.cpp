#include "join_support.h"

namespace troupe::test {
namespace {

TEST_F(JoinTest, ASlowLinkSlowsDownNothingElse) {
  if (!network.inside("h", "tc qdisc add dev va root netem delay 20ms") && !network.inside("h", "tc qdisc add dev va root tbf rate 8mbit burst 16k latency 200ms"))
    GTEST_SKIP() << "this kernel has neither netem nor tbf";
  // Steps long enough for a pull over this link: a version older than the age bound is of no use.
  supervise({"--set", "stage.rl.steps=20000", "--set", "checkpoint.every=0", "--set", "rollout.workers=1", "--set", "stage.rl.rl.prompts_per_step=96"});
  ASSERT_TRUE(wait_until([&] { return training_rl(3); }));
  join("a");
  ASSERT_TRUE(wait_until([&] { return nodes() == 2; })) << joiner_says("a");
  ASSERT_EQ(command({"scale", "rollout=2", "--run", run_dir()}).code, 0);
  ASSERT_TRUE(wait_until([&] { return serving_on("node2") == 1; }, 30s));
  const std::uint64_t before = status()["step"];
  EXPECT_TRUE(wait_until([&] { return status()["step"] >= before + 10; }, 60s));
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  ASSERT_EQ(finish(), 0);
  EXPECT_EQ(leave("a"), 0) << joiner_says("a");
  expect_sound_summary(summary());
  EXPECT_TRUE(events("node_lost").empty());
}

} // namespace
} // namespace troupe::test
