// LibTorch's operators in the place of our kernels, and beside them.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include "model/support.h"
#include "tensor/autograd.h"

namespace troupe::model::test {
namespace {

using tensor::Backend;
using testing::HasSubstr;

tensor::Backends all(Backend backend) {
  return {backend, backend, backend, backend, backend == Backend::kAten ? Backend::kChunked : backend};
}

/// Two documents and a prompt with two completions.
Batch mixed_batch() {
  Batch batch = pack_documents(std::vector<std::vector<std::int32_t>>{random_ids(1, 19, 150), random_ids(2, 7, 150)});
  const auto prompt = random_ids(3, 9, 150);
  append_group(batch, prompt, std::vector<std::vector<std::int32_t>>{random_ids(4, 11, 150), random_ids(5, 3, 150)});
  return batch;
}

class BackendTest : public testing::TestWithParam<const char*> {};

TEST_P(BackendTest, BothGiveTheSameHiddenRowsAndGradients) {
  const Batch batch = mixed_batch();
  std::map<Backend, std::vector<float>> hidden;
  std::map<Backend, std::map<std::string, std::vector<float>>> gradients;
  for (const Backend backend : {Backend::kCpu, Backend::kAten, Backend::kCheck}) {
    Model model = golden_model(GetParam());
    model.set_backends(all(backend));
    model.set_trainable(true);
    const at::Tensor rows = model.forward(batch);
    hidden[backend] = values(rows.detach());
    tensor::backward(std::array{rows}, std::array{at::full(rows.sizes(), 0.01)});
    for (const Parameter& parameter : model.parameters())
      if (parameter.value.grad().defined()) gradients[backend][parameter.name] = values(parameter.value.grad());
  }
  EXPECT_EQ(hidden[Backend::kCheck], hidden[Backend::kCpu]) << "a check changes no bit";
  EXPECT_EQ(gradients[Backend::kCheck], gradients[Backend::kCpu]);
  EXPECT_LT(relative_difference(hidden[Backend::kAten], hidden[Backend::kCpu]), 1e-4);
  EXPECT_NE(hidden[Backend::kAten], hidden[Backend::kCpu]) << "it was computed by somebody else";
  ASSERT_EQ(gradients[Backend::kAten].size(), gradients[Backend::kCpu].size());
  for (const auto& [name, gradient] : gradients[Backend::kCpu])
    EXPECT_LT(relative_difference(gradients[Backend::kAten].at(name), gradient), 1e-3) << name;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, BackendTest, testing::Values("qwen3/base", "llama3/base", "deepseek_v3/base", "qwen3_5/base"), [](const auto& family) {
  std::string name = family.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

// Whoever changes a weight must say so: kernels read packed copies. A check finds it when somebody did not.
TEST(Backends, ACheckNamesTheOperationThatIsWrong) {
  Model model = golden_model("qwen3/base");
  model.set_backends({.matmul = Backend::kCheck});
  const tensor::NoGrad no_grad;
  const Batch batch = mixed_batch();
  (void)model.forward(batch);
  tensor::floats(*model.find("model.layers.0.self_attn.o_proj.weight"))[5] += 3;
  try {
    (void)model.forward(batch);
    ADD_FAILURE() << "a stale copy went unseen";
  } catch (const std::runtime_error& e) {
    EXPECT_THAT(e.what(), HasSubstr("kernels.matmul = \"check\": the two differ by up to"));
  }
  model.weights_changed();
  (void)model.forward(batch);
}

TEST(Backends, ACheckOfBfloat16AllowsItsRounding) {
  Model model = golden_model("qwen3/base");
  model.set_precision(kernels::Precision::kBfloat16);
  model.set_backends(all(Backend::kCheck));
  const tensor::NoGrad no_grad;
  (void)model.forward(mixed_batch());
}

}  // namespace
}  // namespace troupe::model::test
