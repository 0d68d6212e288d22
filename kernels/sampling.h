/// @file
/// From rows of logits to sampled tokens and their log-probs.
#pragma once

#include <cstdint>

namespace troupe::kernels {

/// One row to draw from, and what was drawn.
struct SampleRow {
  const float* logits = nullptr;  ///< [vocab]
  double uniform = 0;             ///< In [0, 1).
  float temperature = 1;          ///< Divides the logits; 0: greedy, the lowest id of the largest logit.
  std::int32_t id = -1;           ///< Drawn; -1 where the logits hold a NaN or have no finite maximum.
  float logprob = 0;  ///< log softmax(logits / temperature)[id], greedy: at temperature 1; NaN when id is -1.
};

/// Draws a token for each row by inverting the cumulative distribution in order of ids: the first id at which the sum
/// of probabilities exceeds `uniform`. A token of probability 0 is never drawn.
/// Determinism: a row's result depends on its own fields only. `logprob` has the bits of logprob_forward. For the draw,
///   weights are added in float32 within 16 neighbouring ids, by a fixed tree, and these sums in float64 in order.
/// Cost: one exponential per logit; reads a row twice, the second time from cache. Rows on several threads.
void sample_rows(SampleRow* rows, std::int64_t count, std::int64_t vocab);

/// weights[i] = exp((logits[i] - max) / temperature), with exactly 1 for the largest. Returns their sum, NaN where
/// sample_rows would give id -1. `weights` has room for `vocab` floats rounded up to a multiple of 16.
[[nodiscard]] double softmax_weights(const float* logits, std::int64_t vocab, float temperature, float* weights);

}  // namespace troupe::kernels
