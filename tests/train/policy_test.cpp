// Policy steps through the trainer: sampled groups, advantages, a reference policy.
#include "support.h"

namespace troupe::train::test {
namespace {

constexpr const char* kModel = "qwen3/base";
constexpr std::int64_t kLimit = 32;

/// Two groups of completions that share their prompts; log-probs are those the model itself gives.
std::vector<rl::Group> sampled_groups(model::Model& sampler, double temperature) {
  std::vector<rl::Group> groups;
  for (const std::uint64_t prompt : {11u, 4u}) {
    rl::Group group;
    group.prompt_id = prompt;
    group.prompt = random_ids(prompt, 5 + prompt % 3, 190);
    for (std::uint32_t i = 0; i < 4; ++i) {
      rl::Sample sample;
      sample.id = {prompt, i};
      sample.ids = random_ids(100 * prompt + i, 2 + 3 * i, 190);
      sample.reward = i % 2;
      auto whole = group.prompt;
      whole.insert(whole.end(), sample.ids.begin(), sample.ids.end());
      MicroBatch batch;
      batch.batch = model::pack_documents(std::vector<std::vector<std::int32_t>>{whole});
      for (std::size_t t = 0; t < sample.ids.size(); ++t) batch.rows.push_back(static_cast<std::int32_t>(group.prompt.size() + t) - 1);
      batch.targets = sample.ids;
      sample.logprobs = value_or_die(Trainer::logprobs(sampler, batch, temperature));
      sample.versions.assign(sample.ids.size(), PolicyVersion{0, 1});
      group.samples.push_back(std::move(sample));
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

/// A policy objective over fixed samples. Micro-batches, reference and loss are made as the rank makes them.
class Policy {
 public:
  Policy(std::vector<rl::Group> groups, rl::AlgorithmOptions options, double temperature, std::int64_t rows_max = 1000)
      : options_(options), temperature_(temperature), batch_(value_or_die(rl::prepare_batch(std::move(groups), options, kLimit))),
        micros_(rl::cut_micro_batches(batch_, rows_max)), batches_(model_batches(micros_)) {}

  [[nodiscard]] std::vector<std::vector<float>> logprobs(model::Model& model) const {
    std::vector<std::vector<float>> all;
    for (const MicroBatch& batch : batches_) all.push_back(value_or_die(Trainer::logprobs(model, batch, temperature_)));
    return all;
  }

  rl::LossMetrics step(Trainer& trainer, model::Model& reference) {
    const auto reference_logprobs = logprobs(reference);
    rl::LossTotals totals;
    report = value_or_die(trainer.step(batches_, temperature_, [&](std::size_t i, std::span<const float> logprob, std::span<const float> entropy) {
      return slopes(i, logprob, entropy, reference_logprobs[i], totals);
    }));
    return rl::metrics(totals);
  }

  /// The same objective without a step.
  [[nodiscard]] rl::LossMetrics evaluate(model::Model& model, model::Model& reference) const {
    const auto now = logprobs(model), then = logprobs(reference);
    rl::LossTotals totals;
    for (std::size_t i = 0; i < micros_.size(); ++i) EXPECT_TRUE(slopes(i, now[i], {}, then[i], totals));
    return rl::metrics(totals);
  }

  [[nodiscard]] std::size_t micro_batches() const { return micros_.size(); }
  StepReport report;

 private:
  Result<std::vector<float>> slopes(std::size_t i, std::span<const float> logprob, std::span<const float> entropy,
                                    std::span<const float> reference, rl::LossTotals& totals) const {
    auto tokens = rl::token_batch(micros_[i], logprob);
    tokens.entropy = entropy;
    tokens.reference_logprob = reference;
    TROUPE_TRY(auto result, rl::policy_loss(tokens, options_.loss, batch_.denominator, totals));
    return std::move(result.dloss_dlogprob);
  }

  rl::AlgorithmOptions options_;
  double temperature_;
  rl::PreparedBatch batch_;
  std::vector<rl::MicroBatch> micros_;
  std::vector<MicroBatch> batches_;
};

rl::AlgorithmOptions with_kl(double coefficient, rl::KlEstimator estimator = rl::KlEstimator::kK3) {
  rl::AlgorithmOptions options;
  options.loss.clip_low = options.loss.clip_high = 0.5;
  options.loss.kl = {coefficient, estimator, rl::KlWeight::kRatio};
  return options;
}

/// Equal rewards in every group: no advantage, only the KL is left.
std::vector<rl::Group> without_signal(std::vector<rl::Group> groups) {
  for (rl::Group& group : groups)
    for (rl::Sample& sample : group.samples) sample.reward = 0.5;
  return groups;
}

void drift(model::Model& model, std::uint64_t seed, double size) {
  Rng rng(seed, RngStream::kTest);
  for (model::Parameter& parameter : model.parameters()) {
    float* values = parameter.value.data_ptr<float>();
    for (std::int64_t i = 0; i < parameter.value.numel(); ++i) values[i] += static_cast<float>(size * rng.normal());
  }
  model.weights_changed();
}

// The sampler's log-probs are the trainer's, bit for bit: the first step has ratio exactly 1, at any temperature.
TEST(PolicyStep, OnPolicyRatioIsOne) {
  for (const double temperature : {1.0, 0.7}) {
    model::Model model = golden_model(kModel), reference = model.clone();
    Policy policy(sampled_groups(model, temperature), with_kl(0.1), temperature);
    Trainer trainer = trainer_of(model, adamw(1e-3));
    const rl::LossMetrics first = policy.step(trainer, reference);
    EXPECT_EQ(first.ratio_mean, 1);
    EXPECT_EQ(first.ppo_kl, 0);
    EXPECT_EQ(first.clip_fraction, 0);
    EXPECT_GT(first.entropy, 0);
    EXPECT_GT(policy.report.grad_norm, 0);
  }
}

TEST(PolicyStep, RewardedSamplesBecomeLikelier) {
  model::Model model = golden_model(kModel), reference = model.clone();
  auto groups = sampled_groups(model, 1.0);
  Policy policy(groups, with_kl(0), 1.0);
  Trainer trainer = trainer_of(model, adamw(1e-3));
  for (int step = 0; step < 3; ++step) policy.step(trainer, reference);
  double rewarded = 0, others = 0;
  const auto now = sampled_groups(model, 1.0);
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t s = 0; s < groups[g].samples.size(); ++s)
      for (std::size_t t = 0; t < groups[g].samples[s].ids.size(); ++t)
        (groups[g].samples[s].reward > 0 ? rewarded : others) += now[g].samples[s].logprobs[t] - groups[g].samples[s].logprobs[t];
  EXPECT_GT(rewarded, 0);
  EXPECT_LT(others, 0);
}

TEST(PolicyStep, LossAndGradientsDoNotDependOnTheCut) {
  std::vector<double> losses, norms;
  std::vector<std::map<std::string, std::vector<float>>> gradients;
  std::size_t most = 0;
  for (const std::int64_t rows_max : {1000, 25, 1}) {
    model::Model model = golden_model(kModel), reference = model.clone();
    drift(reference, 3, 0.01);
    Policy policy(sampled_groups(reference, 1.0), with_kl(0.2), 1.0, rows_max);
    Trainer trainer = trainer_of(model, adamw(1e-3));
    losses.push_back(policy.step(trainer, reference).loss);
    norms.push_back(policy.report.grad_norm);
    gradients.push_back(first_gradient(trainer));
    most = std::max(most, policy.micro_batches());
  }
  EXPECT_EQ(most, 8u); // every sample alone, with a copy of its prompt
  for (std::size_t i = 1; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], losses[0], 1e-12);
    EXPECT_NEAR(norms[i] / norms[0], 1, 1e-6);
    for (const auto& [name, values] : gradients[0]) EXPECT_LT(model::test::relative_difference(gradients[i].at(name), values), 1e-5) << name;
  }
}

TEST(ReferencePolicy, KlIsZeroAtItsOwnWeightsAndGrowsFromThere) {
  for (const auto estimator : {rl::KlEstimator::kK1, rl::KlEstimator::kK2, rl::KlEstimator::kK3}) {
    model::Model model = golden_model(kModel), reference = model.clone();
    Policy policy(sampled_groups(model, 1.0), with_kl(0.05, estimator), 1.0);
    Trainer trainer = trainer_of(model, adamw(1e-3));
    const std::vector<std::vector<float>> frozen = policy.logprobs(reference);
    EXPECT_EQ(policy.step(trainer, reference).kl_loss, 0);
    rl::LossMetrics last;
    for (int step = 0; step < 3; ++step) last = policy.step(trainer, reference);
    if (estimator != rl::KlEstimator::kK1) {
      EXPECT_GT(last.kl_loss, 1e-6); // k1 of one sample may have either sign
    }
    EXPECT_NE(last.kl_loss, 0);
    EXPECT_NEAR(last.loss, last.policy_loss + 0.05 * last.kl_loss, 1e-12);
    EXPECT_EQ(policy.logprobs(reference), frozen); // training moved the policy only
  }
}

// Without a coefficient nothing of the reference enters: not the loss, not the gradient.
TEST(ReferencePolicy, IsNotReadWithoutACoefficient) {
  const auto state = [](std::uint64_t reference_seed) {
    model::Model model = golden_model(kModel), reference = model.clone();
    drift(reference, reference_seed, 0.05);
    Policy policy(sampled_groups(model, 1.0), with_kl(0), 1.0);
    Trainer trainer = trainer_of(model, adamw(1e-3));
    EXPECT_EQ(policy.step(trainer, reference).kl_loss, 0);
    return copy_state(trainer);
  };
  EXPECT_TRUE(different(state(1), state(2)).empty());
}

// V07 through the model: the step's gradient is the slope of the reported objective, along the gradient itself and across it.
TEST(ReferencePolicy, GradientIsTheSlopeOfTheKl) {
  for (const auto estimator : {rl::KlEstimator::kK1, rl::KlEstimator::kK3}) {
    for (const bool signal : {false, true}) {
      rl::AlgorithmOptions options = with_kl(0.5, estimator);
      options.advantage.drop_zero_signal = false;
      model::Model start = golden_model(kModel), reference = start.clone();
      drift(reference, 5, 0.02);
      auto groups = sampled_groups(start, 1.0);
      Policy policy(signal ? groups : without_signal(groups), options, 1.0);
      model::Model model = start.clone();
      Trainer trainer = trainer_of(model, adamw(1e-3));
      const rl::LossMetrics at_start = policy.step(trainer, reference);
      EXPECT_NE(at_start.kl_loss, 0);
      const auto gradient = first_gradient(trainer);
      double norm = 0;
      for (const auto& [name, values] : gradient) norm += std::pow(model::test::norm(values), 2);
      norm = std::sqrt(norm);
      ASSERT_GT(norm, 1e-3);
      const double h = 2e-3;
      double loss[2];
      for (const int side : {0, 1}) {
        model::Model moved = start.clone();
        for (model::Parameter& parameter : moved.parameters()) {
          float* values = parameter.value.data_ptr<float>();
          const auto& g = gradient.at(parameter.name);
          for (std::size_t i = 0; i < g.size(); ++i) values[i] += static_cast<float>((side == 1 ? h : -h) * g[i] / norm);
        }
        moved.weights_changed();
        loss[side] = policy.evaluate(moved, reference).loss;
      }
      EXPECT_NEAR((loss[1] - loss[0]) / (2 * h) / norm, 1, 1e-2) << "signal " << signal;
    }
  }
}

// With nothing else to learn, the KL pulls a policy that has drifted back towards the reference.
TEST(ReferencePolicy, KlAlonePullsThePolicyBack) {
  rl::AlgorithmOptions options = with_kl(1, rl::KlEstimator::kK2);
  options.advantage.drop_zero_signal = false;
  model::Model reference = golden_model(kModel), model = reference.clone();
  drift(model, 9, 0.02);
  Trainer trainer = trainer_of(model, adamw(5e-4));
  Policy policy(without_signal(sampled_groups(model, 1.0)), options, 1.0);
  const double first = policy.step(trainer, reference).kl_loss;
  double last = first;
  for (int step = 0; step < 8; ++step) last = policy.step(trainer, reference).kl_loss;
  EXPECT_GT(first, 0);
  EXPECT_LT(last, first / 2);
}

} // namespace
} // namespace troupe::train::test
