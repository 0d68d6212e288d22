// Runs that compute on "the GPU": the emulated library, which every worker opens.
#include "compared.h"

#include <unistd.h>

#include "tensor/options.h"

namespace troupe::test {
namespace {

class CudaRunTest : public ComparedRunTest {
 protected:
  void SetUp() override {
    ::setenv("TROUPE_CUDA_LIBRARY", TROUPE_EMULATED_CUDA, 1);
    ComparedRunTest::SetUp();
  }
  void TearDown() override {
    ComparedRunTest::TearDown();
    for (const char* name : {"TROUPE_CUDA_LIBRARY", "TROUPE_EMULATED_DEVICES", "TROUPE_EMULATED_MEMORY"}) ::unsetenv(name);
  }
  /// Three supervised steps, two of RL, everything on policy; `value` for every row that has the CPU's bits.
  static std::vector<std::string> settings(const std::string& value) {
    std::vector<std::string> out;
    for (const char* set : {"stage.sft.steps=3", "stage.rl.steps=2", "stage.rl.rl.staleness=0", "rollout.workers=1", "eval.problems=4", "checkpoint.every=0",
                            "stage.sft.data.tokens_per_batch=64", "stage.rl.rl.prompts_per_step=2", "task.reward={type=\"regex\",pattern=\"[0-9]\"}"})
      out.insert(out.end(), {"--set", set});
    for (const tensor::BackendRow& row : tensor::kBackendRows)
      if (row.same_bits) out.insert(out.end(), {"--set", std::string("kernels.") + row.key + "=\"" + value + "\""});
    return out;
  }
  std::string log_of_run() const { return read_file(folder / "run.err").value_or(""); }
};

TEST_F(CudaRunTest, OnTheGpuARunLeavesWhatItLeavesOnTheCpu) {
  start(settings("cpu"));
  ASSERT_EQ(finish(), 0);
  const Left cpu = take();
  ASSERT_EQ(cpu.metrics.size(), 5u);
  start(settings("cuda"));
  ASSERT_EQ(finish(), 0);
  const json s = summary();
  EXPECT_GT(s["logprob_tokens_compared"], 0);
  EXPECT_EQ(s["logprob_diff_max"], 0.0);
  expect_equal(cpu, take());
}

TEST_F(CudaRunTest, WithoutADeviceTheRunEndsBeforeAnythingIsStartedAndSaysWhy) {
  ::setenv("TROUPE_EMULATED_DEVICES", "0", 1);
  start(settings("cuda"));
  EXPECT_EQ(finish(), 1);
  EXPECT_NE(log_of_run().find("kernels.matmul = \"cuda\" needs a GPU that this machine does not have: CUDA finds no device that it can use"), std::string::npos)
      << log_of_run();
  EXPECT_NE(log_of_run().find("hint: use \"cpu\""), std::string::npos);
  EXPECT_FALSE(fs::exists(fs::path(run_dir()) / "run.json"));

  ::setenv("TROUPE_CUDA_LIBRARY", "/nowhere/libtroupe_cuda.so", 1);
  start({"--set", "kernels.sampling=\"check:cuda\""});
  EXPECT_EQ(finish(), 1);
  EXPECT_NE(log_of_run().find("kernels.sampling = \"check:cuda\" needs a GPU that this machine does not have: the GPU kernels could not be loaded: "
                              "/nowhere/libtroupe_cuda.so"),
            std::string::npos)
      << log_of_run();
  const Output checked = command({"config", "check", (folder / "small.toml").string(), "--set", "kernels.matmul=\"cuda\""});
  EXPECT_EQ(checked.code, 0) << "the head cannot know: " << checked.err;
}

TEST_F(CudaRunTest, WithoutRoomTheRunFailsAndSaysHowMuchWasAskedFor) {
  ::setenv("TROUPE_EMULATED_MEMORY", "65536", 1);  // no weight fits
  start(settings("cuda"));
  EXPECT_EQ(finish(), 1);
  EXPECT_NE(log_of_run().find("the GPU has no room for "), std::string::npos) << log_of_run();
  EXPECT_NE(log_of_run().find("lower trainer.micro_batch_tokens or rollout.chunk_tokens"), std::string::npos);
}

} // namespace
} // namespace troupe::test
