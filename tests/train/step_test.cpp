// One optimizer step: the cut into micro-batches, masks, determinism, clipping and schedule.
#include <ATen/Parallel.h>

#include "support.h"

namespace troupe::train::test {
namespace {

constexpr const char* kModel = "qwen3/base";
constexpr std::int32_t kVocab = 192;

std::vector<std::vector<std::int32_t>> documents(std::uint64_t seed) {
  std::vector<std::vector<std::int32_t>> out;
  for (const std::size_t length : {23, 3, 17, 9, 12}) out.push_back(random_ids(seed + length, length, kVocab));
  return out;
}

double difference(const std::map<std::string, std::vector<float>>& a, const std::map<std::string, std::vector<float>>& b) {
  double worst = 0;
  for (const auto& [name, values] : a) worst = std::max(worst, model::test::relative_difference(values, b.at(name)));
  return worst;
}

// V04: lengths 23, 3, 17, 9, 12 make a mean of means visibly wrong.
TEST(MicroBatches, LossAndGradientsDoNotDependOnTheCut) {
  const auto batch = packed(documents(1));
  std::vector<Supervised> reports;
  std::vector<std::map<std::string, std::vector<float>>> gradients;
  for (const std::int64_t rows_max : {1000, 40, 23, 1}) {
    model::Model model = golden_model(kModel);
    Trainer trainer = trainer_of(model, adamw(1e-3));
    reports.push_back(supervised_step(trainer, batch, rows_max));
    gradients.push_back(first_gradient(trainer));
  }
  EXPECT_EQ(rl::cut_packed(batch, 1000).size(), 1u);
  EXPECT_EQ(rl::cut_packed(batch, 1).size(), 5u);
  for (std::size_t i = 1; i < reports.size(); ++i) {
    EXPECT_NEAR(reports[i].loss, reports[0].loss, 1e-12); // rows keep their bits; only the order of the sums may differ
    EXPECT_NEAR(reports[i].report.grad_norm / reports[0].report.grad_norm, 1, 1e-6);
    EXPECT_EQ(reports[i].report.rows, 64);
    EXPECT_LT(difference(gradients[i], gradients[0]), 1e-5);
  }
}

TEST(MicroBatches, TheSameStepsTwiceGiveTheSameBits) {
  std::vector<State> states;
  for (const int threads : {2, 1, 2}) {
    at::set_num_threads(threads);
    model::Model model = golden_model(kModel);
    Trainer trainer = trainer_of(model, adamw(1e-3, 1));
    for (std::uint64_t step = 0; step < 4; ++step) supervised_step(trainer, packed(documents(step)), 40);
    states.push_back(copy_state(trainer));
  }
  EXPECT_EQ(states[0].size(), 3 * golden_model(kModel).parameters().size());
  EXPECT_TRUE(different(states[0], states[1]).empty()) << "one thread instead of two: " << different(states[0], states[1]).front();
  EXPECT_TRUE(different(states[0], states[2]).empty()) << different(states[0], states[2]).front();
}

// A micro-batch without a target adds nothing, wherever it stands.
TEST(MicroBatches, OnesWithoutTargetsChangeNothing) {
  const auto run = [](bool with_empty) {
    model::Model model = golden_model(kModel);
    Trainer trainer = trainer_of(model, adamw(1e-3));
    auto batch = packed(documents(7));
    if (with_empty) { // a document of which nothing is learned
      const auto masked = random_ids(3, 30, kVocab);
      data::append(batch, {masked, std::vector<std::uint8_t>(masked.size(), 0)});
    }
    supervised_step(trainer, batch, 1);
    return copy_state(trainer);
  };
  EXPECT_TRUE(different(run(false), run(true)).empty());
}

/// Mean of -log p over the targets of `batch`.
double loss_of(model::Model& model, const MicroBatch& batch) {
  const auto logprobs = value_or_die(Trainer::logprobs(model, batch, 1.0));
  double sum = 0;
  for (const float l : logprobs) sum -= l;
  return sum / static_cast<double>(logprobs.size());
}

/// Moves every parameter along `direction` by `amount`.
void shift(model::Model& model, const std::map<std::string, std::vector<float>>& direction, double amount) {
  for (model::Parameter& parameter : model.parameters()) {
    float* values = parameter.value.data_ptr<float>();
    const auto& d = direction.at(parameter.name);
    for (std::size_t i = 0; i < d.size(); ++i) values[i] += static_cast<float>(amount * d[i]);
  }
  model.weights_changed();
}

double norm_of(const std::map<std::string, std::vector<float>>& gradient) {
  double sum = 0;
  for (const auto& [name, values] : gradient) sum += std::pow(model::test::norm(values), 2);
  return std::sqrt(sum);
}

// V11: which rows predict which targets is written down by hand here, not taken from the code under test.
TEST(Supervised, OnlyTheCompletionIsLearned) {
  const std::vector<std::int32_t> a{5, 6, 7, 8, 9, 10}, b{20, 21, 22, 23};
  MicroBatch by_hand;
  by_hand.batch = model::pack_documents(std::vector<std::vector<std::int32_t>>{a, b});
  by_hand.rows = {2, 3, 4, 8}; // prompts of three tokens: targets a[3..5] and b[3]
  by_hand.targets = {8, 9, 10, 23};

  model::Model model = golden_model(kModel);
  const double wanted = loss_of(model, by_hand);
  Trainer trainer = trainer_of(model, adamw(1e-3));
  EXPECT_NEAR(supervised_step(trainer, packed({a, b}, 3)).loss, wanted, 1e-6);

  // And its gradient is that of exactly this mean: central difference along the gradient's own direction.
  const auto gradient = first_gradient(trainer);
  const double norm = norm_of(gradient), h = 1e-3;
  model::Model up = golden_model(kModel), down = golden_model(kModel);
  shift(up, gradient, h / norm);
  shift(down, gradient, -h / norm);
  EXPECT_NEAR((loss_of(up, by_hand) - loss_of(down, by_hand)) / (2 * h) / norm, 1, 5e-3);
}

TEST(Supervised, MaskedTargetsMayBeAnything) {
  const auto state = [](std::int32_t last) {
    model::Model model = golden_model(kModel);
    Trainer trainer = trainer_of(model, adamw(1e-3));
    data::PackedSequences batch;
    data::append(batch, {{5, 6, 7, 8, last}, {0, 0, 1, 1, 0}}); // nothing comes after the last token: it is a target or nothing
    supervised_step(trainer, batch);
    return copy_state(trainer);
  };
  EXPECT_TRUE(different(state(9), state(100)).empty());
}

TEST(Clip, ScalesTheWholeGradientDownToTheNorm) {
  const auto batch = packed(documents(2));
  model::Model free_model = golden_model(kModel);
  Trainer free = trainer_of(free_model, adamw(1e-3));
  const double norm = supervised_step(free, batch).report.grad_norm;
  const auto gradient = first_gradient(free);
  EXPECT_NEAR(norm_of(gradient) / norm, 1, 1e-6);
  for (const double limit : {norm / 5, norm * 2}) {
    model::Model model = golden_model(kModel);
    Trainer trainer = trainer_of(model, adamw(1e-3, limit));
    EXPECT_EQ(supervised_step(trainer, batch).report.grad_norm, norm); // reported before clipping
    const auto clipped = first_gradient(trainer);
    EXPECT_NEAR(norm_of(clipped), std::min(norm, limit), 1e-5 * norm);
    const double scale = std::min(1.0, limit / norm);
    for (const auto& [name, values] : gradient)
      for (std::size_t i = 0; i < values.size(); i += 97) ASSERT_NEAR(clipped.at(name)[i], scale * values[i], 1e-6 + 1e-5 * std::abs(values[i])) << name;
  }
}

TEST(Schedule, GivesEveryStepItsRate) {
  optim::ScheduleOptions schedule;
  schedule.decay = optim::Decay::kLinear;
  schedule.warmup_steps = 4;
  schedule.total_steps = 8;
  model::Model model = golden_model(kModel);
  Trainer trainer = trainer_of(model, adamw(1e-3), schedule);
  std::vector<double> rates;
  for (std::uint64_t step = 0; step < 9; ++step) {
    const State before = copy_state(trainer);
    rates.push_back(supervised_step(trainer, packed(documents(step))).report.lr);
    if (step == 0) continue;
    EXPECT_EQ(different(before, copy_state(trainer)).empty(), false) << "the optimizer's averages move even at rate 0";
  }
  const double wanted[] = {.25, .5, .75, 1, .75, .5, .25, 0, 0};
  for (std::size_t i = 0; i < rates.size(); ++i) EXPECT_NEAR(rates[i], 1e-3 * wanted[i], 1e-12) << i;

  // The reported rate is the one that moved the weights: one step of the warm-up is a step at a quarter of the peak.
  model::Model a = golden_model(kModel), b = golden_model(kModel);
  Trainer warming = trainer_of(a, adamw(1e-3), schedule), quarter = trainer_of(b, adamw(1e-3 / 4));
  supervised_step(warming, packed(documents(1)));
  supervised_step(quarter, packed(documents(1)));
  EXPECT_TRUE(different(copy_state(warming), copy_state(quarter)).empty());
}

} // namespace
} // namespace troupe::train::test
