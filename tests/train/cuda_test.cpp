// Optimizer steps with every row of [kernels] on "the GPU", and what is left when it has no room.
#include <gmock/gmock.h>

#include "kernels/device_memory.h"
#include "support.h"
#include "tests/kernels/cuda/emulated.h"

namespace troupe::train::test {
namespace {

using tensor::Backend;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CudaTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::device()) GTEST_SKIP() << kernels::device().error().message;
    for (const tensor::BackendRow& row : tensor::kBackendRows) on_gpu_.*row.member = Backend::kCuda;
  }
  static data::PackedSequences documents() { return packed({random_ids(1, 20, 150), random_ids(2, 9, 150), random_ids(3, 14, 150)}); }
  tensor::Backends on_gpu_;
};

TEST_F(CudaTraining, StepsHaveTheBitsOfTheCpu) {
  std::vector<State> states;
  std::vector<double> losses[2];
  for (const bool gpu : {false, true}) {
    model::Model model = golden_model("qwen3/base");
    if (gpu) model.set_backends(on_gpu_);
    Trainer trainer = value_or_die(
        Trainer::create(model, adamw(1e-3, 1), {}, {}, gpu ? kernels::Where::kDevice : kernels::Where::kHost));
    for (int step = 0; step < 3; ++step) losses[gpu ? 1 : 0].push_back(supervised_step(trainer, documents(), 24).loss);
    states.push_back(copy_state(trainer));
  }
  EXPECT_EQ(losses[1], losses[0]);
  EXPECT_LT(losses[0][2], losses[0][0]);
  EXPECT_THAT(different(states[0], states[1]), IsEmpty());
}

/// Everything that the device has.
std::vector<kernels::DeviceMemory> all_memory() {
  std::vector<kernels::DeviceMemory> all;
  for (std::size_t bytes = std::size_t{4} << 30; bytes >= 512;) {
    auto piece = kernels::DeviceMemory::allocate(bytes);
    if (piece)
      all.push_back(std::move(*piece));
    else
      bytes /= 2;
  }
  return all;
}

TEST_F(CudaTraining, WithoutRoomAStepIsAnErrorThatSaysWhatToDoAndChangesNothing) {
  std::size_t left = 0, whole = 0;
  ASSERT_EQ(kernels::device()->library->memory_left(&left, &whole), nullptr);
  if (whole > (std::size_t{8} << 30)) GTEST_SKIP() << "a real device: too much to fill";
  model::Model model = golden_model("qwen3/base");
  model.set_backends(on_gpu_);
  Trainer trainer = value_or_die(Trainer::create(model, adamw(1e-3, 1), {}, {}, kernels::Where::kDevice));
  const State before = copy_state(trainer);
  const auto micros = rl::cut_packed(documents(), 1000);
  const LossFunction loss = [](std::size_t, std::span<const float> logprob, std::span<const float>) -> Result<std::vector<float>> {
    return std::vector<float>(logprob.size(), -0.01F);
  };
  {
    const auto taken = all_memory();
    const auto refused = trainer.step(weighted_batches(micros), 1.0, loss);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
    EXPECT_THAT(refused.error().message, HasSubstr("the GPU has no room for "));
    EXPECT_THAT(refused.error().message, HasSubstr("lower trainer.micro_batch_tokens or rollout.chunk_tokens"));
    EXPECT_EQ(Trainer::logprobs(model, weighted_batches(micros)[0], 1.0).error().code, ErrorCode::kResourceExhausted);
  }
  EXPECT_THAT(different(before, copy_state(trainer)), IsEmpty());
  const auto done = trainer.step(weighted_batches(micros), 1.0, loss);
  EXPECT_TRUE(done.has_value()) << done.error().message;
  EXPECT_FALSE(different(before, copy_state(trainer)).empty());
}

}  // namespace
}  // namespace troupe::train::test
