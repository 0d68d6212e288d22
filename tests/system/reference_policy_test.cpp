// A KL coefficient in the config keeps a frozen copy of the policy in the rank: its metric, and what a resume does with it.
#include "support.h"

namespace troupe::test {
namespace {

class ReferencePolicyTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    std::string text = kExperiment;
    const std::string plain = "advantage = { drop_zero_signal = false }";
    text.replace(text.find(plain), plain.size(), plain + ", loss = { kl = { coefficient = 0.05 } }");
    const std::string reward = "pattern = \"7$\"";
    text.replace(text.find(reward), reward.size(), "pattern = \"[13]\"");
    std::ofstream(folder / "small.toml") << text;
  }

  struct Step {
    std::uint64_t step = 0;
    double kl = 0, loss = 0, policy_loss = 0;
  };
  /// The rl steps of metrics.jsonl, in order.
  std::vector<Step> steps() const {
    std::vector<Step> out;
    std::ifstream metrics(fs::path(run_dir()) / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      const json m = json::parse(line, nullptr, false);
      if (m.is_object() && m.contains("actor/kl_loss")) out.push_back({m["step"], m["actor/kl_loss"], m["loss/mean"], m["actor/pg_loss"]});
    }
    return out;
  }
};

TEST_F(ReferencePolicyTest, KlStartsAtZeroAndIsReportedEveryStep) {
  start();
  ASSERT_EQ(finish(), 0);
  const json s = summary();
  expect_sound_summary(s);
  EXPECT_EQ(s["exit"], "done");
  EXPECT_TRUE(events("checkpoint_failed").empty()) << "the reference changes the layout of the state; the first save after it waits for the writer";
  const auto rl = steps();
  ASSERT_EQ(rl.size(), 12u);
  EXPECT_EQ(rl.front().kl, 0) << "the reference is the policy that the stage starts from";
  for (std::size_t i = 1; i < rl.size(); ++i) {
    EXPECT_GT(rl[i].kl, 0) << "step " << rl[i].step; // k2 is a square
    EXPECT_LT(rl[i].kl, 1) << "step " << rl[i].step;
    EXPECT_NEAR(rl[i].loss, rl[i].policy_loss + 0.05 * rl[i].kl, 1e-9) << "step " << rl[i].step;
  }
}

TEST_F(ReferencePolicyTest, AResumedRunKeepsTheReferenceOfItsStart) {
  start({"--set", "stage.rl.steps=300"});
  ASSERT_TRUE(wait_until([&] { return training_rl(10); }));
  ASSERT_EQ(command({"stop", "--run", run_dir()}).code, 0);
  ASSERT_EQ(finish(), 0);
  ASSERT_EQ(summary()["exit"], "stopped");
  const std::size_t before = steps().size();
  ASSERT_LT(before, 300u);
  const Output resumed = command({"run", "--resume", run_dir()});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  const auto rl = steps();
  ASSERT_EQ(rl.size(), 300u);
  for (std::size_t i = 1; i < rl.size(); ++i) EXPECT_GT(rl[i].kl, 0) << "step " << rl[i].step << ", resumed after " << before;
}

} // namespace
} // namespace troupe::test
