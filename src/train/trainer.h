/// @file
/// One optimizer step: micro-batches forward and backward, clip, update. Knows neither data nor algorithm: the loss is a function given in.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/batch.h"
#include "model/model.h"
#include "optim/adamw.h"
#include "optim/options.h"
#include "train/model_loss.h"
#include "train/options.h"

namespace troupe::train {

/// One forward and backward pass. n scored targets.
struct MicroBatch {
  model::Batch batch;
  std::vector<std::int32_t> rows;    ///< [n] rows of the batch whose hidden state predicts the target; may repeat.
  std::vector<std::int32_t> targets; ///< [n]
  double share = 1;          ///< Of the whole batch's targets, on all ranks: weighs a mean over the rows of a micro-batch (ModelLossOptions).
  double sequence_share = 1; ///< Likewise of its segments.
  double further_weight = 1; ///< Of each target of `further_targets`: 1 / their number in the whole batch.
};

/// From the scores of micro-batch `index` to the derivative of the loss by each log-prob. Shapes: all [n].
/// The loss must already be divided by the whole batch's denominator: gradients of micro-batches are added.
using LossFunction = std::function<Result<std::vector<float>>(std::size_t index, std::span<const float> logprob, std::span<const float> entropy)>;

/// Sums every tensor over the ranks of the mesh, in place. Every rank calls it once a step, with tensors of the same sizes.
using ReduceFunction = std::function<Status(std::span<const std::span<float>> tensors)>;

struct StepReport {
  double grad_norm = 0; ///< Before clipping.
  double lr = 0;        ///< Of this step.
  std::int64_t rows = 0; ///< Tokens that went through the model of this rank.
  ModelLossReport model; ///< Zeros when no such loss is on.
};

/// A tensor of the training state, as a checkpoint sees it. Borrowed: valid until the trainer changes.
struct StateTensor {
  std::string name;                 ///< The parameter's name, or "exp_avg.<name>", "exp_avg_sq.<name>".
  std::vector<std::int64_t> shape;
  std::span<float> values;
};

/// A model and its optimizer. Not thread-safe.
class Trainer {
 public:
  /// The model must outlive the trainer; it becomes trainable. `optimizer`: where AdamW runs. Errors: those of AdamW::create and
  /// validate(schedule).
  [[nodiscard]] static Result<Trainer> create(model::Model& model, const optim::AdamWOptions& options, const optim::ScheduleOptions& schedule,
                                              const ModelLossOptions& model_loss = {}, kernels::Where optimizer = kernels::Where::kHost);

  /// One step. On an error nothing was changed, but where a GPU fails in the middle of AdamW. With `reduce` the micro-batches are this rank's part of the batch (there may be none), and
  /// gradients are summed over the ranks before they are clipped: as all ranks hold the same bits before the step, they do after it.
  /// Errors: kInvalidArgument without micro-batches and `reduce`; those of `reduce`; those of kernels on a GPU (kernels/offload.h); kCorrupt for a gradient that is not finite, naming the parameter; those of `loss`.
  /// Determinism: the same inputs give the same bits, whatever was trained before and whatever else the machine does.
  [[nodiscard]] Result<StepReport> step(std::span<const MicroBatch> batches, double temperature, const LossFunction& loss, const ReduceFunction& reduce = {});

  /// Scores targets without gradients (reference policies, probes). Shape [n]. Errors: those of a forward pass, as of `step`.
  [[nodiscard]] static Result<std::vector<float>> logprobs(model::Model& model, const MicroBatch& batch, double temperature);

  /// Optimizer steps of this trainer's schedule.
  [[nodiscard]] std::int64_t steps() const { return optimizer_.steps(); }
  /// Of the steps to come.
  void set_peak_lr(double lr) { peak_lr_ = lr; }
  void set_steps(std::int64_t steps) { optimizer_.set_steps(steps); }
  /// Parameters, then the optimizer's state. After writing into it call `state_changed`.
  [[nodiscard]] std::vector<StateTensor> state();
  void state_changed() { model_->weights_changed(); }

 private:
  Trainer(model::Model& model, optim::AdamW optimizer, const optim::AdamWOptions& options, const optim::ScheduleOptions& schedule,
          const ModelLossOptions& model_loss)
      : model_(&model),
        optimizer_(std::move(optimizer)),
        max_grad_norm_(options.max_grad_norm),
        peak_lr_(options.lr),
        schedule_(schedule),
        model_loss_(model_loss) {}
  Status backward(std::span<const MicroBatch> batches, double temperature, const LossFunction& loss, ModelLoss* more);
  Status reduce_gradients(const ReduceFunction& reduce, ModelLoss* more);

  model::Model* model_;
  optim::AdamW optimizer_;
  double max_grad_norm_;
  double peak_lr_;
  optim::ScheduleOptions schedule_;
  ModelLossOptions model_loss_;
};

} // namespace troupe::train
