// A batch split over ranks: loss and gradient are those of one rank, and all ranks hold the same bits after each step.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "support.h"

namespace troupe::train::test {
namespace {

constexpr const char* kModel = "qwen3/base";
constexpr std::int32_t kVocab = 192;
using Gradient = std::map<std::string, std::vector<float>>;

/// Adds what `ranks` threads bring, in the order of the ranks, and gives the sum to all of them.
class Sums {
 public:
  explicit Sums(std::uint32_t ranks) : parts_(ranks) {}

  Status add(std::uint32_t rank, std::span<const std::span<float>> tensors) {
    std::unique_lock lock(mutex_);
    parts_[rank].clear();
    for (const auto& tensor : tensors) parts_[rank].insert(parts_[rank].end(), tensor.begin(), tensor.end());
    const std::uint64_t round = round_;
    if (++here_ == parts_.size()) {
      sum_.assign(parts_[0].size(), 0);
      for (const auto& part : parts_)
        for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += part[i];
      here_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
    std::size_t at = 0;
    for (const auto& tensor : tensors)
      for (float& value : tensor) value = sum_[at++];
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<float>> parts_;
  std::vector<float> sum_;
  std::size_t here_ = 0;
  std::uint64_t round_ = 0;
};

struct Outcome {
  double loss = 0, grad_norm = 0;
  std::int64_t rows = 0;
  std::vector<std::size_t> micro_batches; ///< Of each rank.
  Gradient gradient;                      ///< Of the first step.
  std::vector<State> states;              ///< Of each rank, at the end.
};

/// One rank's part of a step: its micro-batches and the loss of each.
struct PartOfStep {
  std::vector<rl::MicroBatch> micros;
  std::function<Result<rl::LossResult>(const rl::TokenBatch&, rl::LossTotals&)> loss;
};
using MakePart = std::function<PartOfStep(std::uint64_t step, rl::Part part)>;

Outcome train(std::uint32_t ranks, std::uint64_t steps, double clip, const MakePart& make) {
  Sums sums(ranks);
  Outcome out;
  out.states.resize(ranks);
  out.micro_batches.resize(ranks);
  std::vector<rl::LossTotals> totals(ranks);
  std::vector<StepReport> reports(ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      model::Model model = golden_model(kModel);
      Trainer trainer = trainer_of(model, adamw(1e-3, clip));
      for (std::uint64_t step = 0; step < steps; ++step) {
        const PartOfStep part = make(step, {rank, ranks});
        rl::LossTotals mine;
        const LossFunction loss = [&](std::size_t i, std::span<const float> logprob, std::span<const float>) -> Result<std::vector<float>> {
          TROUPE_TRY(auto result, part.loss(rl::token_batch(part.micros[i], logprob), mine));
          return std::move(result.dloss_dlogprob);
        };
        ReduceFunction reduce;
        if (ranks > 1) reduce = [&](std::span<const std::span<float>> tensors) { return sums.add(rank, tensors); };
        const StepReport report = value_or_die(trainer.step(model_batches(part.micros), 1.0, loss, reduce));
        if (step > 0) continue;
        totals[rank] = mine;
        reports[rank] = report;
        out.micro_batches[rank] = part.micros.size();
        if (rank == 0) out.gradient = first_gradient(trainer);
      }
      out.states[rank] = copy_state(trainer);
    });
  for (auto& thread : threads) thread.join();
  for (std::uint32_t rank = 0; rank < ranks; ++rank) out.loss += totals[rank].loss, out.rows += reports[rank].rows;
  out.grad_norm = reports[0].grad_norm;
  for (const StepReport& report : reports) EXPECT_EQ(report.grad_norm, reports[0].grad_norm) << "every rank clips by the same norm";
  return out;
}

void expect_same_training(const Outcome& split, const Outcome& whole) {
  EXPECT_NEAR(split.loss / whole.loss, 1, 1e-9);
  EXPECT_NEAR(split.grad_norm / whole.grad_norm, 1, 1e-5);
  for (const auto& [name, values] : whole.gradient) EXPECT_LT(model::test::relative_difference(split.gradient.at(name), values), 1e-5) << name;
  for (const State& state : split.states) EXPECT_TRUE(different(state, split.states[0]).empty()) << "bits differ between ranks: " << different(state, split.states[0]).front();
}

MakePart supervised(std::vector<std::size_t> lengths, std::int64_t rows_max) {
  return [=](std::uint64_t step, rl::Part part) {
    std::vector<std::vector<std::int32_t>> documents;
    for (std::size_t i = 0; i < lengths.size(); ++i) documents.push_back(random_ids(100 * step + i, lengths[i], kVocab));
    const auto batch = packed(documents);
    rl::Denominator denominator = rl::make_denominator(rl::Aggregation::kTokenMean);
    rl::count_packed(denominator, batch); // of the whole batch, on every rank
    return PartOfStep{rl::cut_packed(batch, rows_max, part),
                      [denominator](const rl::TokenBatch& tokens, rl::LossTotals& totals) { return rl::cross_entropy_loss(tokens, denominator, totals); }};
  };
}

// Ranks get unequal numbers of tokens: a mean of the ranks' means would be visibly wrong.
TEST(Ranks, SupervisedStepsAreThoseOfOneRank) {
  const auto make = supervised({23, 3, 17, 9, 12}, 40);
  const Outcome whole = train(1, 3, 0.5, make);
  EXPECT_EQ(whole.rows, 64);
  for (const std::uint32_t ranks : {2U, 3U}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const Outcome split = train(ranks, 3, 0.5, make);
    EXPECT_EQ(split.rows, 64);
    expect_same_training(split, whole);
  }
}

// One document is not cut: the other ranks have no micro-batch, and still take part in the sum.
TEST(Ranks, SomeRanksHaveNothingToDo) {
  const auto make = supervised({19}, 40);
  const Outcome split = train(3, 2, 0, make);
  EXPECT_EQ(split.micro_batches, (std::vector<std::size_t>{0, 1, 0}));
  expect_same_training(split, train(1, 2, 0, make));
}

TEST(Ranks, AParameterThatTookPartNowhereIsNotTouched) {
  const MakePart make = [](std::uint64_t, rl::Part part) {
    const auto nothing = packed({random_ids(1, 9, kVocab), random_ids(2, 9, kVocab)}, 9); // all masked
    return PartOfStep{rl::cut_packed(nothing, 40, part), [](const rl::TokenBatch&, rl::LossTotals&) -> Result<rl::LossResult> { return fail(ErrorCode::kInternal, "no targets"); }};
  };
  model::Model model = golden_model(kModel);
  Trainer fresh = trainer_of(model, adamw(1e-3));
  for (const State& state : train(2, 2, 0, make).states) EXPECT_TRUE(different(state, copy_state(fresh)).empty());
}

// Samples of unequal length and a loss weighted by sequences; a group's prompt is there twice where the border falls inside it.
TEST(Ranks, PolicyStepsAreThoseOfOneRank) {
  std::vector<rl::Group> groups;
  for (const std::uint64_t prompt : {3U, 8U, 12U}) {
    rl::Group group{prompt, random_ids(prompt, 4 + prompt % 3, kVocab), {}};
    for (std::uint32_t i = 0; i < 4; ++i) {
      rl::Sample sample;
      sample.id = {prompt, i};
      sample.ids = random_ids(100 * prompt + i, 1 + 4 * i, kVocab);
      sample.reward = i % 2;
      sample.logprobs.assign(sample.ids.size(), -5.25F);
      sample.versions.assign(sample.ids.size(), PolicyVersion{0, 1});
      group.samples.push_back(std::move(sample));
    }
    groups.push_back(std::move(group));
  }
  for (const rl::Aggregation aggregation : {rl::Aggregation::kTokenMean, rl::Aggregation::kSeqMeanTokenMean}) {
    rl::AlgorithmOptions options;
    options.loss.aggregation = aggregation;
    const auto batch = value_or_die(rl::prepare_batch(groups, options, 32));
    const MakePart make = [&](std::uint64_t, rl::Part part) {
      return PartOfStep{rl::cut_micro_batches(batch, 30, part), [&](const rl::TokenBatch& tokens, rl::LossTotals& totals) {
                          return rl::policy_loss(tokens, options.loss, batch.denominator, totals);
                        }};
    };
    const Outcome whole = train(1, 2, 1, make);
    for (const std::uint32_t ranks : {2U, 3U}) expect_same_training(train(ranks, 2, 1, make), whole);
  }
}

TEST(Ranks, WhatTheSumSaysIsWhatTheStepSays) {
  model::Model model = golden_model(kModel);
  Trainer trainer = trainer_of(model, adamw(1e-3));
  const State before = copy_state(trainer);
  const auto step = trainer.step({}, 1.0, {}, [](std::span<const std::span<float>>) -> Status { return fail(ErrorCode::kUnavailable, "rank/1 is gone"); });
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().message, "rank/1 is gone");
  EXPECT_TRUE(different(before, copy_state(trainer)).empty());
  EXPECT_EQ(trainer.steps(), 0);
}

} // namespace
} // namespace troupe::train::test
