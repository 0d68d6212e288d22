/// @file
/// From rows of logits to log-probabilities, entropy and the most likely token, forward and backward.
#pragma once

#include <cstdint>

namespace troupe::kernels {

/// Arguments of `logprob_forward`. z = logits / temperature, over the first `vocab` columns of each row; the columns
/// after them only pad the matrix and take no part.
struct LogprobForward {
  const float* logits = nullptr;          ///< [rows, ldl]
  const std::int32_t* targets = nullptr;  ///< [rows], 0 ... vocab-1; null when `logprob` is null.
  float* logprob = nullptr;               ///< [rows], log softmax(z)[target]; null to skip.
  float* entropy = nullptr;               ///< [rows], of softmax(z), in nats; null to skip.
  float* lse = nullptr;                   ///< [rows], log sum exp(z); null to skip.
  std::int32_t* argmax = nullptr;         ///< [rows], the lowest index of the largest logit; null to skip.
  std::int64_t rows = 0;
  std::int64_t vocab = 0;  ///< Real tokens.
  std::int64_t ldl = 0;    ///< Floats from row to row; 0: vocab.
  float temperature = 1;   ///< > 0; divides the logits before the softmax.
};

/// Determinism: a row's bits depend on its first `vocab` logits and the temperature only; sums use 64 lanes by column
/// and a fixed tree. A logit of -inf has probability 0; a NaN makes the row's results NaN (argmax 0).
/// Cost: reads a row three times (later ones from cache), one exponential per column.
void logprob_forward(const LogprobForward& args);

/// Arguments of `logprob_backward`.
struct LogprobBackward {
  const float* logits = nullptr;          ///< As in the forward pass.
  const std::int32_t* targets = nullptr;  ///< [rows]
  const float* lse = nullptr;             ///< [rows], from the forward pass.
  const float* entropy = nullptr;         ///< [rows], from the forward pass; null when dentropy is null.
  const float* dlogprob = nullptr;        ///< [rows]
  const float* dentropy = nullptr;        ///< [rows]; null: zero.
  float* dlogits = nullptr;               ///< [rows, ldd], all `ldd` columns written, padding 0; may be logits itself.
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  std::int64_t ldl = 0;  ///< 0: vocab.
  std::int64_t ldd = 0;  ///< 0: ldl.
  float temperature = 1;
};

/// dlogits = (dlogprob (1[target] - p) - dentropy p (log p + entropy)) / temperature. Elementwise per row.
void logprob_backward(const LogprobBackward& args);

}  // namespace troupe::kernels
