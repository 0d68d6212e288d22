#include "train/trainer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <optional>

#include "optim/clip.h"
#include "optim/schedule.h"
#include "tensor/place.h"

namespace troupe::train {
namespace {

std::span<float> values_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

at::Tensor row_index(const std::vector<std::int32_t>& rows) {
  return at::from_blob(const_cast<std::int32_t*>(rows.data()), {static_cast<std::int64_t>(rows.size())}, at::kInt).to(at::kLong);
}

model::TokenScores score(model::Model& model, const MicroBatch& batch, double temperature, model::Trace* trace = nullptr) {
  const at::Tensor hidden = model.forward(batch.batch, trace);
  return model.score(hidden.index_select(0, row_index(batch.rows)), batch.targets, temperature);
}

std::span<const float> read(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

} // namespace

Result<Trainer> Trainer::create(model::Model& model, const optim::AdamWOptions& options, const optim::ScheduleOptions& schedule,
                                const ModelLossOptions& model_loss, kernels::Where where) {
  TROUPE_TRY_STATUS(optim::validate(schedule));
  std::vector<optim::ParameterInfo> infos;
  for (const model::Parameter& parameter : model.parameters()) infos.push_back({parameter.name, parameter.value.numel()});
  TROUPE_TRY(auto optimizer, optim::AdamW::create(options, infos));
  optimizer.set_where(where);
  model.set_trainable(true);
  return Trainer(model, std::move(optimizer), options, schedule, model_loss);
}

Status Trainer::backward(std::span<const MicroBatch> batches, double temperature, const LossFunction& loss, ModelLoss* more) {
  model_->clear_gradients();
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (batches[i].targets.empty()) continue;
    model::Trace trace;
    const model::TokenScores scores = score(*model_, batches[i], temperature, more != nullptr ? &trace : nullptr);
    const at::Tensor logprob = scores.logprob.detach().contiguous(), entropy = scores.entropy.detach().contiguous();
    TROUPE_TRY(auto derivative, loss(i, read(logprob), read(entropy)));
    const at::Tensor gradient = at::from_blob(derivative.data(), {static_cast<std::int64_t>(derivative.size())}, at::kFloat);
    const at::Tensor extra = more != nullptr ? more->of(*model_, batches[i], trace) : at::Tensor();
    if (extra.defined() && extra.requires_grad())
      torch::autograd::backward({scores.logprob, extra}, {gradient, at::ones({})});
    else
      torch::autograd::backward({scores.logprob}, {gradient});
  }
  return {};
}

// A parameter that took no part on this rank counts as zeros; one that took part on no rank stays without a gradient.
Status Trainer::reduce_gradients(const ReduceFunction& reduce, ModelLoss* more) {
  std::vector<float> took_part;
  std::vector<std::span<float>> tensors;
  for (model::Parameter& parameter : model_->parameters()) {
    at::Tensor& gradient = parameter.value.mutable_grad();
    took_part.push_back(gradient.defined() ? 1 : 0);
    if (!gradient.defined()) gradient = at::zeros_like(parameter.value);
    tensors.push_back(values_of(gradient));
  }
  tensors.emplace_back(took_part);
  if (more != nullptr)
    for (const std::span<float> totals : more->totals()) tensors.push_back(totals);
  TROUPE_TRY_STATUS(reduce(tensors));
  std::size_t i = 0;
  for (model::Parameter& parameter : model_->parameters())
    if (took_part[i++] == 0) parameter.value.mutable_grad() = at::Tensor();
  return {};
}

Result<StepReport> Trainer::step(std::span<const MicroBatch> batches, double temperature, const LossFunction& loss, const ReduceFunction& reduce) {
  if (batches.empty() && !reduce) return fail(ErrorCode::kInvalidArgument, "an optimizer step needs at least one micro-batch");
  StepReport report;
  try {
    std::optional<ModelLoss> more;
    if (model_loss_.any()) more.emplace(model_loss_, model_->spec());
    ModelLoss* const parts = more ? &*more : nullptr;
    TROUPE_TRY_STATUS(backward(batches, temperature, loss, parts));
    if (reduce) TROUPE_TRY_STATUS(reduce_gradients(reduce, parts));
    std::vector<optim::NamedGradient> gradients;
    std::vector<optim::ParameterStep> updates;
    for (model::Parameter& parameter : model_->parameters()) {
      const at::Tensor& gradient = parameter.value.grad();
      std::span<const float> values;
      if (gradient.defined()) values = read(gradient);
      updates.push_back({values_of(parameter.value), values});
      if (gradient.defined()) gradients.push_back({parameter.name, values});
    }
    const optim::GradientNorm norm = optim::gradient_norm(gradients);
    if (!norm.finite()) {
      model_->clear_gradients();
      return fail(ErrorCode::kCorrupt, "the gradient of " + *norm.broken + " is not finite in optimizer step " + std::to_string(steps() + 1));
    }
    const double factor = optim::schedule_factor(schedule_, steps());
    TROUPE_TRY_STATUS(optimizer_.step(updates, factor, optim::clip_scale(norm.norm, max_grad_norm_)));
    if (parts != nullptr) {
      parts->move_corrections(*model_);
      report.model = parts->report();
    }
    report.grad_norm = norm.norm;
    report.lr = peak_lr_ * factor;
  } catch (const tensor::KernelError& e) {
    model_->clear_gradients();
    return tl::unexpected(e.error());
  } catch (const std::exception& e) {
    model_->clear_gradients();
    return fail(ErrorCode::kInternal, std::string("LibTorch could not do the step: ") + e.what());
  }
  for (const MicroBatch& batch : batches) report.rows += static_cast<std::int64_t>(batch.batch.ids.size());
  model_->clear_gradients();
  model_->weights_changed();
  return report;
}

Result<std::vector<float>> Trainer::logprobs(model::Model& model, const MicroBatch& batch, double temperature) {
  const torch::autograd::AutoGradMode off(false);
  try {
    const at::Tensor scores = score(model, batch, temperature).logprob.contiguous();
    const auto values = read(scores);
    return std::vector<float>(values.begin(), values.end());
  } catch (const tensor::KernelError& e) {
    return tl::unexpected(e.error());
  } catch (const std::exception& e) {
    return fail(ErrorCode::kInternal, std::string("LibTorch could not score a batch: ") + e.what());
  }
}

std::vector<StateTensor> Trainer::state() {
  std::vector<StateTensor> tensors;
  std::vector<std::vector<std::int64_t>> shapes;
  for (model::Parameter& parameter : model_->parameters()) {
    shapes.push_back(parameter.value.sizes().vec());
    tensors.push_back({parameter.name, shapes.back(), values_of(parameter.value)});
  }
  std::size_t i = 0; // the optimizer lists exp_avg and exp_avg_sq of each parameter in turn
  for (optim::StateTensor& tensor : optimizer_.state()) tensors.push_back({tensor.name, shapes[i++ / 2], tensor.values});
  return tensors;
}

} // namespace troupe::train
