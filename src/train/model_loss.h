/// @file
/// What a model trains besides the loss on its tokens: even use of its experts, and the blocks that predict further tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/model.h"
#include "train/options.h"

namespace troupe::train {

struct MicroBatch;

/// Of one step, over the whole batch.
struct ModelLossReport {
  double load_balance = 0;      ///< Unscaled, weighted by the micro-batches' shares of the batch.
  double sequence_balance = 0;  ///< Unscaled: the mean over mixtures, likewise.
  double further = 0;           ///< Mean cross-entropy of the token after the next, in nats.
  double busiest = 0;           ///< Of the mixture that is used least evenly: tokens of its busiest expert / those of the mean one.
};

/// (row, target): the rows whose next token and the one after it are both in the batch, and that one is scored. `row` predicts `target` two
/// tokens ahead.
[[nodiscard]] std::vector<std::pair<std::int32_t, std::int32_t>> further_targets(const MicroBatch& batch);

/// What the terms of a batch are divided by: counts of the whole of it, whoever computes it.
struct BatchCounts {
  std::size_t targets = 0, segments = 0, further = 0;
  void add(const MicroBatch& batch);
};

/// Gives each micro-batch of a part of a batch its shares of the whole (MicroBatch::share and its neighbours).
void set_shares(std::span<MicroBatch> part, const BatchCounts& whole);

/// Collects the losses of a step's micro-batches and how often each expert was chosen.
/// Source: research of models: load balance as in Hugging Face's mixtures (over the rows of a micro-batch: the one term that depends on how a batch is
/// cut), sequence balance and multi-token prediction as in DeepSeek-V3 (arXiv 2412.19437, equations 17 to 20 and 21 to 25).
class ModelLoss {
 public:
  ModelLoss(const ModelLossOptions& options, const model::ModelSpec& spec);

  /// The sum of all terms, ready to be added to the batch's loss; undefined when there are none. `trace` is what the forward pass over `batch`
  /// left; the blocks for further tokens run here.
  [[nodiscard]] at::Tensor of(model::Model& model, const MicroBatch& batch, model::Trace& trace);

  /// What ranks add up, in place.
  [[nodiscard]] std::vector<std::span<float>> totals();
  /// After the optimizer's step: moves the routers' corrections by the counts of the whole batch.
  void move_corrections(model::Model& model) const;
  [[nodiscard]] ModelLossReport report() const;

 private:
  [[nodiscard]] at::Tensor balance(const model::Trace& trace, const MicroBatch& batch);
  [[nodiscard]] at::Tensor further(model::Model& model, const MicroBatch& batch, model::Trace& trace);

  ModelLossOptions options_;
  std::vector<std::vector<float>> counts_;  // by place: [E], empty without experts
  std::vector<float> sums_ = {0, 0, 0};     // load balance, sequence balance, further tokens
};

} // namespace troupe::train
