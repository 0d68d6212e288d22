/// @file
/// From hidden rows to log-probabilities of targets, without ever holding the logits of all rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "tensor/linear.h"

namespace troupe::tensor {

/// Shapes: [n] each.
struct Scores {
  at::Tensor logprob;
  at::Tensor entropy;
};

/// What becomes of a product with the head before it is a logit: cap * tanh(multiplier * x / cap), or multiplier * x
/// where cap is 0.
struct LogitRule {
  double multiplier = 1;
  double cap = 0;
  [[nodiscard]] bool plain() const { return multiplier == 1 && cap == 0; }
};
/// Applies the rule in place; not recorded.
void apply_logit_rule(const at::Tensor& products, const LogitRule& rule);

/// log softmax(hidden W^T / temperature)[target] and the entropy (nats) of that distribution over the first `vocab`
/// rows of W. Shapes: hidden [n, D], weight [V, D]. Differentiable in both. Cost: logits of one block of rows (16 MiB,
/// at vocabularies above 16,384 up to 160 MiB) at a time, computed again in the backward pass. On the GPU they stay there
/// (with a plain rule), and so does the weight's gradient until it is whole.
[[nodiscard]] Scores score(const at::Tensor& hidden, const at::Tensor& weight,
                           const std::shared_ptr<PackedWeights>& packed, std::span<const std::int32_t> targets,
                           float temperature, std::int64_t vocab, const LogitRule& rule = {}, Where where = Where::kHost);

}  // namespace troupe::tensor
