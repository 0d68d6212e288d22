/// @file
/// What keeps the experts of a model evenly used: auxiliary losses, and the rule that moves a router's correction.
/// Source: research/models.md 15.1 to 15.3.
#pragma once

#include "model/model.h"

namespace troupe::model {

/// E * sum_i f_i P_i over the rows of all mixtures of experts together: f_i the assignments to expert i per row, P_i its
/// mean softmax probability. 1 * chosen when all are used alike. A differentiable scalar; undefined without experts.
/// Precondition: all have the same number of experts.
[[nodiscard]] at::Tensor load_balance_loss(const Trace& trace);

/// Mean over the sequences (the batch's segments) of sum_i f_i P_i, for one mixture: f_i = E / (chosen * T) * assignments,
/// P_i = mean of s_i / sum s. Differentiable in the logits.
[[nodiscard]] at::Tensor sequence_balance_loss(const Trace::Routed& routed, const Batch& batch);

/// How often each expert was chosen. Shape [E]. Counts of several batches, and of all ranks, are added.
[[nodiscard]] std::vector<double> expert_counts(const Trace::Routed& routed);

/// correction_i += speed * sign(mean count - count_i). Counts are those of the whole batch of an optimizer step.
void update_correction(const at::Tensor& correction, std::span<const double> counts, double speed);

}  // namespace troupe::model
