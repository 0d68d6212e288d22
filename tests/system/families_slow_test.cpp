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

} // namespace
} // namespace troupe::test
