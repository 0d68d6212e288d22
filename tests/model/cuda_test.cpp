// Whole models with every row of [kernels] on "the GPU": the CPU's bits, in training and in generation.
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include "kernels/device_memory.h"
#include "model/support.h"
#include "tensor/autograd.h"
#include "tests/kernels/cuda/emulated.h"

namespace troupe::model::test {
namespace {

using tensor::Backend;

/// Every row, or those alone whose gradients have the CPU's bits.
tensor::Backends all(Backend backend, bool same_bits_only) {
  tensor::Backends backends;
  for (const tensor::BackendRow& row : tensor::kBackendRows)
    if (row.same_bits || !same_bits_only) backends.*row.member = backend;
  return backends;
}

struct Computed {
  std::vector<float> logits, logprob, entropy;
  double loss = 0;
  std::map<std::string, std::vector<float>> gradients;
};

/// Two documents and a prompt with two completions.
Batch mixed_batch() {
  Batch batch = pack_documents(std::vector<std::vector<std::int32_t>>{random_ids(1, 21, 150), random_ids(2, 7, 150)});
  const auto prompt = random_ids(3, 9, 150);
  append_group(batch, prompt, std::vector<std::vector<std::int32_t>>{random_ids(4, 11, 150), random_ids(5, 3, 150)});
  return batch;
}

Computed compute(Model& model, const Batch& batch) {
  model.set_trainable(true);
  model.clear_gradients();
  const NextTokens next = next_tokens(batch);
  const at::Tensor hidden = model.forward(batch);
  const TokenScores scores = model.score(hidden.index_select(0, at::tensor(next.rows)), next.targets);
  Computed out;
  out.logits = values(model.logits(hidden));
  out.logprob = values(scores.logprob);
  out.entropy = values(scores.entropy);
  out.loss = -std::accumulate(out.logprob.begin(), out.logprob.end(), 0.0) / static_cast<double>(out.logprob.size());
  tensor::backward(std::array{scores.logprob}, std::array{at::full(scores.logprob.sizes(), -1.0 / static_cast<double>(out.logprob.size()))});
  for (const Parameter& parameter : model.parameters())
    if (parameter.value.grad().defined()) out.gradients[parameter.name] = values(parameter.value.grad());
  model.set_trainable(false);
  return out;
}

void expect_forward_bits(const Computed& got, const Computed& want) {
  EXPECT_EQ(got.logits, want.logits);
  EXPECT_EQ(got.logprob, want.logprob);
  EXPECT_EQ(got.entropy, want.entropy);
  EXPECT_EQ(got.loss, want.loss);
  EXPECT_EQ(got.gradients.size(), want.gradients.size());
}

class CudaModel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!kernels::device()) GTEST_SKIP() << kernels::device().error().message;
  }
};

TEST_P(CudaModel, TrainsWithTheBitsOfTheCpu) {
  Model model = golden_model(GetParam());
  const Batch batch = mixed_batch();
  const Computed cpu = compute(model, batch);
  EXPECT_GT(cpu.loss, 1) << "a loss of random ids";
  for (const Backend backend : {Backend::kCuda, Backend::kCheckCuda}) {
    SCOPED_TRACE(backend == Backend::kCuda ? "cuda" : "check:cuda");
    model.set_backends(all(backend, true));
    const auto before = kernels::device_traffic().kernels;
    const Computed exact = compute(model, batch);
    EXPECT_GT(kernels::device_traffic().kernels, before + 20);
    expect_forward_bits(exact, cpu);
    for (const auto& [name, gradient] : cpu.gradients) EXPECT_TRUE(exact.gradients.at(name) == gradient) << name;

    model.set_backends(all(backend, false));
    const Computed whole = compute(model, batch);
    expect_forward_bits(whole, cpu);
    for (const auto& [name, gradient] : cpu.gradients) EXPECT_LT(relative_difference(whole.gradients.at(name), gradient), 1e-4) << name;
  }
}

TEST_P(CudaModel, GeneratesWithTheBitsOfTheCpuThroughPages) {
  Model model = golden_model(GetParam());
  const auto prompt = random_ids(8, 12, 150);
  const auto cpu = greedy(model, prompt, 6);
  model.set_backends(all(Backend::kCuda, false));
  EXPECT_EQ(greedy(model, prompt, 6), cpu);
}

TEST_P(CudaModel, ChangedWeightsAreCopiedAgain) {
  Model model = golden_model(GetParam());
  const Batch batch = mixed_batch();
  model.set_backends(all(Backend::kCuda, false));
  const auto first = logits_of(model, batch);
  for (Parameter& parameter : model.parameters())
    if (parameter.trains && parameter.value.dim() > 1)
      for (float& number : tensor::floats(parameter.value)) number *= 1.25F;
  model.weights_changed();
  const auto second = logits_of(model, batch);
  EXPECT_NE(second, first);
  model.set_backends({});
  EXPECT_EQ(second, logits_of(model, batch));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CudaModel, ::testing::ValuesIn(kFixtures), [](const auto& family) {
  std::string name = family.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

TEST(CudaModelInBfloat16, HasTheBitsOfTheCpuWithoutAttention) {
  if (!kernels::device()) GTEST_SKIP() << kernels::device().error().message;
  Model model = golden_model("qwen3_moe/base");
  model.set_precision(kernels::Precision::kBfloat16);
  const Computed cpu = compute(model, mixed_batch());
  tensor::Backends backends;
  for (const tensor::BackendRow& row : tensor::kBackendRows)
    if (row.bfloat16) backends.*row.member = Backend::kCuda;
  model.set_backends(backends);
  const Computed gpu = compute(model, mixed_batch());
  expect_forward_bits(gpu, cpu);
  for (const auto& [name, gradient] : cpu.gradients) EXPECT_TRUE(gpu.gradients.at(name) == gradient) << name;
}

}  // namespace
}  // namespace troupe::model::test
