// Whole runs with families beside the quickstart's; the others are in families_slow_test.cpp.
#include "families_support.h"

namespace troupe::test {
namespace {

TEST_F(FamilyRunTest, LatentAttentionExpertsAndGuesses) { play("deepseek_v3", true); }

TEST_F(FamilyRunTest, AModelWithoutABlockForFurtherTokensCannotGuess) {
  start({"--set", "rollout.draft_tokens=1"});
  EXPECT_EQ(finish(), 1);
  const std::string said = read_file(folder / "run.err").value_or("");
  EXPECT_NE(said.find("rollout.draft_tokens needs a model with a block for further tokens (MTP); one of the family qwen3 has none"), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(run_dir())) << "nothing of the run exists";
}

} // namespace
} // namespace troupe::test
