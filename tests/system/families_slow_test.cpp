// Every other family through a whole run.
#include "families_support.h"

namespace troupe::test {
namespace {

TEST_F(FamilyRunTest, Qwen3Moe) { play("qwen3_moe", false); }
TEST_F(FamilyRunTest, GptOss) { play("gpt_oss", false); }
TEST_F(FamilyRunTest, Qwen35) { play("qwen3_5", true); }
TEST_F(FamilyRunTest, Qwen35Moe) { play("qwen3_5_moe", true); }
TEST_F(FamilyRunTest, MuseSpark) { play("muse_spark", false); }
TEST_F(FamilyRunTest, DeepseekV4) { play("deepseek_v4", true); }

TEST_F(FamilyRunTest, AWholeRunWithEveryKernelCheckedAgainstLibTorch) {
  start({"--set", "stage.rl.steps=4", "--set", "kernels.matmul=\"check\"", "--set", "kernels.attention=\"check\"", "--set", "kernels.norm=\"check\"",
         "--set", "kernels.activation=\"check\""});
  ASSERT_EQ(finish(), 0) << read_file(folder / "run.err").value_or("");
  expect_sound_summary(summary());
  EXPECT_EQ(summary()["logprob_diff_max"], 0);
  const Output refused = command({"config", "check", (folder / "small.toml").string(), "--set", "kernels.norm=\"aten\""});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE((refused.out + refused.err).find("cannot keep what numerics = \"invariant\" promises"), std::string::npos) << refused.out << refused.err;
}

} // namespace
} // namespace troupe::test
