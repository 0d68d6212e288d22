// AdamW steps of transformers and torch, reproduced by the trainer: forward, backward, clip and update in one.
#include "support.h"

namespace troupe::train::test {
namespace {

class GoldenSteps : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenSteps, LossesAndNormsOfEveryStep) {
  const auto golden = golden_json(GetParam())["adamw"];
  model::Model model = golden_model(GetParam());
  optim::AdamWOptions options = adamw(golden["lr"], golden["grad_clip_norm"]);
  options.beta1 = golden["betas"][0];
  options.beta2 = golden["betas"][1];
  options.eps = golden["eps"];
  options.weight_decay = golden["weight_decay"];
  Trainer trainer = trainer_of(model, options);
  const model::test::Golden tensors(GetParam());
  const auto document = packed({tensors.ids("input_ids")});
  const std::size_t steps = golden["losses_before_step"].size();
  ASSERT_EQ(steps, 5u);
  for (std::size_t step = 0; step < steps; ++step) {
    const Supervised done = supervised_step(trainer, document);
    EXPECT_NEAR(done.loss / golden["losses_before_step"][step].get<double>(), 1, 1e-4) << "step " << step;
    EXPECT_NEAR(done.report.grad_norm / golden["grad_norm_before_clip"][step].get<double>(), 1, 1e-3) << "step " << step;
    EXPECT_EQ(done.report.lr, options.lr);
  }
  EXPECT_EQ(trainer.steps(), 5);
  EXPECT_NEAR(supervised_step(trainer, document).loss / golden["loss_after"].get<double>(), 1, 1e-4);
}

// Two documents side by side: the divisor is the number of targets of both, and none of them crosses the boundary.
TEST_P(GoldenSteps, PackedDocuments) {
  const auto golden = golden_json(GetParam())["packed"];
  const model::test::Golden tensors(GetParam());
  const auto ids = tensors.ids("packed.input_ids"), bounds = tensors.ids("packed.cu_seqlens");
  std::vector<std::vector<std::int32_t>> documents;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) documents.emplace_back(ids.begin() + bounds[i], ids.begin() + bounds[i + 1]);
  for (const std::int64_t rows_max : {1000, 1}) { // together, then each document a micro-batch of its own
    model::Model model = golden_model(GetParam());
    Trainer trainer = trainer_of(model, adamw(1e-3));
    const Supervised done = supervised_step(trainer, packed(documents), rows_max);
    EXPECT_NEAR(done.loss, golden["loss"].get<double>(), 1e-5);
    EXPECT_NEAR(done.report.grad_norm / golden["grad_norm_total"].get<double>(), 1, 1e-3);
    EXPECT_EQ(done.report.rows, static_cast<std::int64_t>(ids.size()));
    const auto gradient = first_gradient(trainer);
    for (const auto& [name, wanted] : golden["grad_norms"].items())
      EXPECT_NEAR(model::test::norm(gradient.at(name)) / wanted.get<double>(), 1, 1e-3) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GoldenSteps, ::testing::Values("qwen3/base", "qwen3/yarn_untied", "llama3/base"));

} // namespace
} // namespace troupe::train::test
