/// @file
/// What the trainer tests share: small models, supervised and policy steps the way the rank makes them, comparisons of whole states.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "data/packing.h"
#include "model/support.h"
#include "rl/batch.h"
#include "rl/loss.h"
#include "train/trainer.h"

namespace troupe::train::test {

using model::test::golden_json;
using model::test::golden_model;
using model::test::random_ids;
using model::test::value_or_die;

inline optim::AdamWOptions adamw(double lr, double max_grad_norm = 0) {
  optim::AdamWOptions options;
  options.lr = lr;
  options.max_grad_norm = max_grad_norm;
  return options;
}

inline Trainer trainer_of(model::Model& model, const optim::AdamWOptions& options, const optim::ScheduleOptions& schedule = {}) {
  return value_or_die(Trainer::create(model, options, schedule));
}

inline MicroBatch model_batch(const rl::MicroBatch& micro) {
  MicroBatch out;
  out.batch.ids = micro.ids;
  out.batch.positions = micro.positions;
  for (const rl::Segment& s : micro.segments) out.batch.segments.push_back({s.begin, s.end, s.prefix_begin, s.prefix_end});
  out.rows = micro.rows;
  out.targets = micro.targets;
  return out;
}

inline std::vector<MicroBatch> model_batches(const std::vector<rl::MicroBatch>& micros) {
  std::vector<MicroBatch> out;
  for (const rl::MicroBatch& micro : micros) out.push_back(model_batch(micro));
  return out;
}

/// The same as the whole of a batch, with the shares that losses of the model's parts need.
inline std::vector<MicroBatch> weighted_batches(const std::vector<rl::MicroBatch>& micros) {
  std::vector<MicroBatch> batches = model_batches(micros);
  BatchCounts whole;
  for (const MicroBatch& batch : batches) whole.add(batch);
  set_shares(batches, whole);
  return batches;
}

/// Documents that are learned from `first_learned` on.
inline data::PackedSequences packed(const std::vector<std::vector<std::int32_t>>& documents, std::size_t first_learned = 0) {
  data::PackedSequences out;
  for (const auto& ids : documents) {
    data::Document document{ids, std::vector<std::uint8_t>(ids.size(), 1)};
    for (std::size_t i = 0; i < first_learned; ++i) document.sampled[i] = 0;
    data::append(out, document);
  }
  return out;
}

/// One supervised step over the documents, at most `rows_max` rows in a micro-batch.
struct Supervised {
  double loss = 0; ///< Mean over the trained tokens of the whole batch.
  StepReport report;
};
inline Supervised supervised_step(Trainer& trainer, const data::PackedSequences& documents, std::int64_t rows_max = 1 << 20) {
  rl::Denominator denominator = rl::make_denominator(rl::Aggregation::kTokenMean);
  rl::count_packed(denominator, documents);
  const auto micros = rl::cut_packed(documents, rows_max);
  rl::LossTotals totals;
  Supervised out;
  out.report = value_or_die(trainer.step(weighted_batches(micros), 1.0, [&](std::size_t i, std::span<const float> logprob, std::span<const float>) -> Result<std::vector<float>> {
    TROUPE_TRY(auto result, rl::cross_entropy_loss(rl::token_batch(micros[i], logprob), denominator, totals));
    return std::move(result.dloss_dlogprob);
  }));
  out.loss = totals.loss;
  return out;
}

/// A copy of every tensor of the training state, by name.
using State = std::map<std::string, std::vector<float>>;
inline State copy_state(Trainer& trainer) {
  State state;
  for (const StateTensor& tensor : trainer.state()) state[tensor.name].assign(tensor.values.begin(), tensor.values.end());
  return state;
}

/// Names of tensors whose bits differ.
inline std::vector<std::string> different(const State& a, const State& b) {
  std::vector<std::string> names;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size() ||
        std::memcmp(values.data(), other->second.data(), values.size() * sizeof(float)) != 0)
      names.push_back(name);
  }
  return names;
}

/// The gradient of the first step, read from the optimizer: exp_avg = (1 - beta1) g. Needs clipping off and a fresh trainer.
inline std::map<std::string, std::vector<float>> first_gradient(Trainer& trainer, double beta1 = 0.9) {
  constexpr std::string_view kPrefix = "exp_avg.";
  std::map<std::string, std::vector<float>> gradient;
  for (const StateTensor& tensor : trainer.state()) {
    if (!tensor.name.starts_with(kPrefix)) continue;
    auto& values = gradient[tensor.name.substr(kPrefix.size())];
    for (const float m : tensor.values) values.push_back(static_cast<float>(m / (1 - beta1)));
  }
  return gradient;
}

} // namespace troupe::train::test
