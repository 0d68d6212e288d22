// Losses of the model's parts: golden values, independence of the cut, sums over ranks, corrections of routers.
#include <ATen/Parallel.h>

#include "support.h"

namespace troupe::train::test {
namespace {

constexpr const char* kLatent = "deepseek_v3/base";  // sigmoid router with a correction, one block for further tokens
constexpr const char* kSoftmax = "qwen3_moe/base";

struct Done {
  StepReport report;
  std::map<std::string, std::vector<float>> gradient;
  State state;
};

/// One step of a golden model, on the mean cross-entropy and `options`.
Done step(const char* fixture, const ModelLossOptions& options, const data::PackedSequences& documents, std::int64_t rows_max = 1 << 20) {
  at::set_num_threads(1);
  model::Model model = golden_model(fixture);
  Trainer trainer = value_or_die(Trainer::create(model, adamw(1e-6), {}, options));
  Done done;
  done.report = supervised_step(trainer, documents, rows_max).report;
  done.gradient = first_gradient(trainer);
  done.state = copy_state(trainer);
  return done;
}

data::PackedSequences golden_document(const char* fixture) { return packed({model::test::Golden(fixture).ids("input_ids")}); }

std::vector<std::vector<std::int32_t>> documents() {
  std::vector<std::vector<std::int32_t>> out;
  for (const std::size_t length : {23, 3, 17, 9, 12}) out.push_back(random_ids(length, length, 150));
  return out;
}

TEST(ModelLoss, LoadBalanceIsTheGoldenOneWithItsGradients) {
  const auto golden = golden_json(kSoftmax)["aux"];
  const Done done = step(kSoftmax, {.load_balance = golden["coef"]}, golden_document(kSoftmax));
  EXPECT_NEAR(done.report.model.load_balance, golden["aux_loss"].get<double>(), 1e-5);
  ASSERT_TRUE(golden.contains("router_grad_norms_with_aux"));
  for (const auto& [name, wanted] : golden["router_grad_norms_with_aux"].items())
    EXPECT_NEAR(model::test::norm(done.gradient.at(name)) / wanted.get<double>(), 1, 1e-3) << name;
  EXPECT_GT(done.report.model.busiest, 1);
}

TEST(ModelLoss, FurtherTokensAreTheGoldenOnesAndTrainTheirBlock) {
  const auto golden = golden_json(kLatent)["mtp"];
  const Done with = step(kLatent, {.further = 0.3}, golden_document(kLatent));
  EXPECT_NEAR(with.report.model.further, golden["loss"].get<double>(), 1e-5);
  const Done without = step(kLatent, {}, golden_document(kLatent));
  EXPECT_EQ(without.report.model.further, 0);
  std::size_t of_block = 0;
  const std::string block = "model.layers." + std::to_string(golden_model(kLatent).spec().layers.size()) + ".";
  for (const auto& [name, gradient] : with.gradient) {
    if (!name.starts_with(block) || name.ends_with("correction_bias")) continue;
    ++of_block;
    EXPECT_GT(model::test::norm(gradient), 0) << name;
    EXPECT_EQ(model::test::norm(without.gradient.at(name)), 0) << name;
  }
  EXPECT_GT(of_block, 10u);
}

TEST(ModelLoss, DoesNotDependOnTheCut) {
  const ModelLossOptions options{.sequence_balance = 0.01, .further = 0.3};
  const Done whole = step(kLatent, options, packed(documents()));
  EXPECT_GT(whole.report.model.sequence_balance, 0);
  for (const std::int64_t rows_max : {40, 23, 1}) {
    const Done cut = step(kLatent, options, packed(documents()), rows_max);
    EXPECT_NEAR(cut.report.model.sequence_balance, whole.report.model.sequence_balance, 1e-5);
    EXPECT_NEAR(cut.report.model.further, whole.report.model.further, 1e-5);
    EXPECT_EQ(cut.report.model.busiest, whole.report.model.busiest);
    for (const auto& [name, values] : whole.gradient) {
      if (model::test::norm(values) == 0) continue;
      EXPECT_LT(model::test::relative_difference(cut.gradient.at(name), values), 1e-4) << name;
    }
  }
}

TEST(ModelLoss, CorrectionsMoveAgainstTheBusyByTheGoldenRule) {
  const auto golden = golden_json(kLatent)["balance"];
  const std::string name = "model.layers." + std::to_string(golden["layer"].get<int>()) + ".mlp.gate.e_score_correction_bias";
  const Done still = step(kLatent, {.further = 0.1}, golden_document(kLatent));
  EXPECT_EQ(still.state.at(name), golden["bias_before"].get<std::vector<float>>());
  for (const std::int64_t rows_max : {1 << 20, 1}) {
    const Done moved = step(kLatent, {.correction_speed = golden["update_speed"]}, golden_document(kLatent), rows_max);
    EXPECT_LT(model::test::max_difference(moved.state.at(name), golden["bias_after_sign_rule"].get<std::vector<float>>()), 1e-7);
  }
}

// Each rank counts its own rows; what they add up is what one rank would have counted.
TEST(ModelLoss, RanksAddTheirCounts) {
  const ModelLossOptions options{.sequence_balance = 0.01, .correction_speed = 0.001};
  const auto batches = weighted_batches(rl::cut_packed(packed(documents()), 1));
  const auto run = [&](std::size_t first, std::size_t last, model::Model& model) {
    ModelLoss loss(options, model.spec());
    for (std::size_t i = first; i < last; ++i) {
      model::Trace trace;
      (void)model.forward(batches[i].batch, &trace);
      (void)loss.of(model, batches[i], trace);
    }
    return loss;
  };
  model::Model one = golden_model(kLatent), other = golden_model(kLatent);
  ModelLoss whole = run(0, 5, one);
  ModelLoss a = run(0, 2, other);
  ModelLoss b = run(2, 5, other);
  const auto mine = a.totals(), theirs = b.totals();
  ASSERT_EQ(mine.size(), theirs.size());
  for (std::size_t i = 0; i < mine.size(); ++i)
    for (std::size_t j = 0; j < mine[i].size(); ++j) mine[i][j] += theirs[i][j];
  EXPECT_EQ(a.report().busiest, whole.report().busiest);
  EXPECT_NEAR(a.report().sequence_balance, whole.report().sequence_balance, 1e-6);
  whole.move_corrections(one);
  a.move_corrections(other);
  std::size_t corrections = 0;
  for (std::size_t place = 0; place < one.spec().layers.size(); ++place) {
    const at::Tensor left = one.router_correction(static_cast<int>(place)), right = other.router_correction(static_cast<int>(place));
    ASSERT_EQ(left.defined(), right.defined());
    if (!left.defined()) continue;
    ++corrections;
    EXPECT_EQ(model::test::values(left), model::test::values(right));
  }
  EXPECT_GT(corrections, 0u);
}

// A prompt of 3 rows and two completions: the prompt's last row predicts two tokens, and its next token is not its neighbour.
TEST(FurtherTargets, AreScoredTwoTokensAheadInTheSameSegment) {
  MicroBatch batch;
  model::append_group(batch.batch, std::vector<std::int32_t>{5, 6, 7}, std::vector<std::vector<std::int32_t>>{{10, 11}, {20, 21, 22}});
  batch.rows = {2, 3, 4, 2, 5, 6, 7};
  batch.targets = {10, 11, 12, 20, 21, 22, 23};
  using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;
  EXPECT_EQ(further_targets(batch), (Pairs{{3, 12}, {5, 22}, {6, 23}}));
  batch.rows = {4, 6};  // the others are not trained
  batch.targets = {12, 22};
  EXPECT_EQ(further_targets(batch), (Pairs{{3, 12}, {5, 22}}));
}

} // namespace
} // namespace troupe::train::test
