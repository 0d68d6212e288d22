// staleness = 0 through the real processes: every sample is made by the weights that train on it.
#include "support.h"

namespace troupe::test {
namespace {

// S20: no sample is even one version old. S22: sampler and trainer agree bit for bit on all of them, in the production path.
TEST_F(RunTest, OnPolicyMeansAgeZeroAndRatioOne) {
  start({"--set", "stage.rl.rl.staleness=0", "--set", "task.reward={type=\"regex\",pattern=\"[13]\"}"});
  ASSERT_EQ(finish(), 0);
  const json s = summary();
  expect_sound_summary(s);
  EXPECT_EQ(s["exit"], "done");
  EXPECT_EQ(s["policy_age_max"], 0);
  std::size_t steps = 0, tokens = 0;
  std::ifstream metrics(fs::path(run_dir()) / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const json m = json::parse(line, nullptr, false);
    if (!m.is_object() || !m.contains("loss/ratio_mean")) continue;
    ++steps;
    EXPECT_EQ(m["loss/ratio_mean"], 1) << m["step"];
    EXPECT_EQ(m["actor/ppo_kl"], 0) << m["step"];
    EXPECT_EQ(m["actor/pg_clipfrac"], 0) << m["step"];
    ASSERT_TRUE(m.contains("bit_wise/tokens_compared")) << m["step"];
    EXPECT_EQ(m["bit_wise/logprob_diff/max"], 0) << m["step"];
    tokens += m["bit_wise/tokens_compared"].get<std::size_t>();
  }
  EXPECT_EQ(steps, 12u);
  EXPECT_GE(tokens, 12u * 16); // every token of 4 x 4 samples a step, at least one each
}

} // namespace
} // namespace troupe::test
