// What a checkpoint takes out and puts back, and steps that must not happen.
#include <limits>

#include "support.h"

namespace troupe::train::test {
namespace {

constexpr const char* kModel = "llama3/base";

data::PackedSequences batch_of(std::uint64_t step) { return packed({random_ids(2 * step, 19, 128), random_ids(2 * step + 1, 8, 128)}); }

optim::ScheduleOptions cosine() {
  optim::ScheduleOptions schedule;
  schedule.decay = optim::Decay::kCosine;
  schedule.warmup_steps = 2;
  schedule.total_steps = 10;
  return schedule;
}

void restore(Trainer& trainer, const State& state, std::int64_t steps) {
  for (const StateTensor& tensor : trainer.state()) {
    ASSERT_TRUE(state.contains(tensor.name)) << tensor.name;
    ASSERT_EQ(state.at(tensor.name).size(), tensor.values.size());
    std::copy(state.at(tensor.name).begin(), state.at(tensor.name).end(), tensor.values.begin());
  }
  trainer.set_steps(steps);
  trainer.state_changed();
}

// S17: losses, rates and bits of steps 4..9 are those of the run that was never interrupted.
TEST(TrainerState, RestoredRunGoesOnWithTheSameBits) {
  model::Model whole_model = golden_model(kModel);
  Trainer whole = trainer_of(whole_model, adamw(2e-3, 1), cosine());
  State saved;
  std::vector<double> losses, rates;
  for (std::uint64_t step = 0; step < 10; ++step) {
    if (step == 4) saved = copy_state(whole);
    const Supervised done = supervised_step(whole, batch_of(step), 20);
    losses.push_back(done.loss);
    rates.push_back(done.report.lr);
  }
  model::Model other = golden_model("llama3/base");
  Trainer resumed = trainer_of(other, adamw(2e-3, 1), cosine());
  supervised_step(resumed, batch_of(99)); // has packed copies of other weights and averages of its own
  restore(resumed, saved, 4);
  EXPECT_EQ(resumed.steps(), 4);
  for (std::uint64_t step = 4; step < 10; ++step) {
    const Supervised done = supervised_step(resumed, batch_of(step), 20);
    EXPECT_EQ(done.loss, losses[step]) << step;
    EXPECT_EQ(done.report.lr, rates[step]) << step;
  }
  EXPECT_TRUE(different(copy_state(whole), copy_state(resumed)).empty());
}

TEST(TrainerState, NamesAndShapes) {
  model::Model model = golden_model(kModel);
  Trainer trainer = trainer_of(model, adamw(1e-3));
  const auto state = trainer.state();
  const std::size_t n = model.parameters().size();
  ASSERT_EQ(state.size(), 3 * n);
  for (std::size_t i = 0; i < n; ++i) {
    const model::Parameter& parameter = model.parameters()[i];
    EXPECT_EQ(state[i].name, parameter.name);
    EXPECT_EQ(state[n + 2 * i].name, "exp_avg." + parameter.name);
    EXPECT_EQ(state[n + 2 * i + 1].name, "exp_avg_sq." + parameter.name);
    for (const std::size_t k : {i, n + 2 * i, n + 2 * i + 1}) {
      EXPECT_EQ(state[k].shape, parameter.value.sizes().vec()) << state[k].name;
      EXPECT_EQ(static_cast<std::int64_t>(state[k].values.size()), parameter.value.numel());
    }
  }
}

TEST(TrainerState, ThePlaceInTheScheduleIsPartOfIt) {
  const auto state = [](std::int64_t steps) {
    model::Model model = golden_model(kModel);
    Trainer trainer = trainer_of(model, adamw(1e-3), cosine());
    trainer.set_steps(steps);
    supervised_step(trainer, batch_of(0));
    return copy_state(trainer);
  };
  EXPECT_FALSE(different(state(0), state(4)).empty());
}

MicroBatch micro() {
  MicroBatch batch;
  batch.batch = model::pack_documents(std::vector<std::vector<std::int32_t>>{random_ids(1, 9, 128)});
  batch.rows = {1, 2, 3};
  batch.targets = {4, 5, 6};
  return batch;
}

LossFunction slopes(std::vector<float> values) {
  return [values](std::size_t, std::span<const float>, std::span<const float>) -> Result<std::vector<float>> { return values; };
}

// A step that fails leaves weights, averages and counters as they were, and the next one is as if it had never been tried.
TEST(BrokenStep, ChangesNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<MicroBatch> two{micro(), micro()};
  struct Case {
    const char* what;
    LossFunction loss;
    ErrorCode code;
    std::string words;
  };
  const Case cases[] = {
      {"not a number", slopes({-1, nan, -1}), ErrorCode::kCorrupt, "step 2"},
      {"infinite", slopes({-1, inf, -1}), ErrorCode::kCorrupt, "is not finite"},
      {"in the second micro-batch",
       [&](std::size_t i, std::span<const float>, std::span<const float>) -> Result<std::vector<float>> {
         return std::vector<float>{-1, i == 1 ? nan : -1, -1};
       },
       ErrorCode::kCorrupt, "the gradient of "},
      {"overflow of the sum", slopes({3e38f, 3e38f, 3e38f}), ErrorCode::kCorrupt, "is not finite"},
      {"an error of the loss",
       [](std::size_t i, std::span<const float>, std::span<const float>) -> Result<std::vector<float>> {
         if (i == 1) return fail(ErrorCode::kInvalidArgument, "no such advantage");
         return std::vector<float>{-1, -1, -1};
       },
       ErrorCode::kInvalidArgument, "no such advantage"},
      {"slopes of another length", slopes({-1, -1}), ErrorCode::kInternal, ""},
  };
  model::Model undisturbed_model = golden_model(kModel);
  Trainer undisturbed = trainer_of(undisturbed_model, adamw(1e-3, 1), cosine());
  supervised_step(undisturbed, batch_of(0));
  const State before = copy_state(undisturbed);
  supervised_step(undisturbed, batch_of(1));
  const State after = copy_state(undisturbed);
  for (const Case& c : cases) {
    model::Model model = golden_model(kModel);
    Trainer trainer = trainer_of(model, adamw(1e-3, 1), cosine());
    supervised_step(trainer, batch_of(0));
    const auto failed = trainer.step(two, 1.0, c.loss);
    ASSERT_FALSE(failed) << c.what;
    EXPECT_EQ(failed.error().code, c.code) << c.what << ": " << failed.error().message;
    EXPECT_NE(failed.error().message.find(c.words), std::string::npos) << failed.error().message;
    EXPECT_EQ(trainer.steps(), 1) << c.what;
    EXPECT_TRUE(different(copy_state(trainer), before).empty()) << c.what;
    supervised_step(trainer, batch_of(1));
    EXPECT_TRUE(different(copy_state(trainer), after).empty()) << c.what << ": " << different(copy_state(trainer), after).front();
  }
}

TEST(BrokenStep, NamesTheParameter) {
  model::Model model = golden_model(kModel);
  Trainer trainer = trainer_of(model, adamw(1e-3));
  const auto failed = trainer.step(std::vector<MicroBatch>{micro()}, 1.0, slopes({std::numeric_limits<float>::quiet_NaN(), 0, 0}));
  ASSERT_FALSE(failed);
  bool named = false;
  for (const model::Parameter& parameter : model.parameters()) named = named || failed.error().message.find(parameter.name + " ") != std::string::npos;
  EXPECT_TRUE(named) << failed.error().message;
}

TEST(BrokenStep, NeedsABatchAndSoundOptions) {
  model::Model model = golden_model(kModel);
  Trainer trainer = trainer_of(model, adamw(1e-3));
  EXPECT_EQ(trainer.step({}, 1.0, slopes({})).error().code, ErrorCode::kInvalidArgument);
  optim::ScheduleOptions endless;
  endless.decay = optim::Decay::kLinear; // towards what end?
  EXPECT_EQ(Trainer::create(model, adamw(1e-3), endless).error().code, ErrorCode::kInvalidConfig);
  EXPECT_EQ(Trainer::create(model, adamw(-1), {}).error().code, ErrorCode::kInvalidConfig);
}

} // namespace
} // namespace troupe::train::test
