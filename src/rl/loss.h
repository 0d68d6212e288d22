/// @file
/// Policy and cross-entropy losses as pure functions on arrays: value, derivative per log-prob, metrics.
///
/// One `Denominator` is counted over the whole batch (all ranks, all micro-batches) before the first micro-batch; each token's
/// weight then depends on its own sequence and on that count only, so the cut into micro-batches changes neither loss nor gradient.
/// Arithmetic is double; the derivatives are stop-gradient exact (importance weights and CISPO's ratio are constants).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "rl/options.h"

namespace troupe::rl {

/// The tokens [begin, end) of one sequence in the per-token arrays. A sequence is never split over micro-batches.
struct SequenceRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

/// What token losses are divided by.
struct Denominator {
  Aggregation aggregation = Aggregation::kTokenMean;
  double constant_tokens = 0;         ///< L of Aggregation::kConstant.
  std::int64_t tokens = 0;            ///< Tokens whose mask is set.
  std::int64_t sequences = 0;         ///< Sequences with at least one such token.
  std::int64_t sequences_all = 0;     ///< All sequences; the N of kConstant.

  /// Counts one more sequence.
  void add_sequence(std::int64_t trained_tokens);
  /// Adds the counts of another rank's part of the batch.
  void add(const Denominator& other);
  /// The factor of each token of a sequence with `trained_tokens` tokens; 0 when nothing is trained at all.
  [[nodiscard]] double weight(std::int64_t trained_tokens) const;
};

/// Empty counts. `constant_tokens` is read by kConstant only.
[[nodiscard]] Denominator make_denominator(Aggregation aggregation, double constant_tokens = 0);
/// Counts masks that are given as one array and its sequences.
void count(Denominator& denominator, std::span<const std::uint8_t> mask, std::span<const SequenceRange> sequences);

/// One micro-batch. All arrays are [n] with one entry per scored target, or empty where that is allowed. Borrowed for the call.
struct TokenBatch {
  std::span<const float> logprob;            ///< The trainer's, at the sampling temperature.
  std::span<const float> behaviour_logprob;  ///< Recorded when sampled.
  std::span<const float> proximal_logprob;   ///< The trainer's before the step. Empty: `logprob` itself (one update per batch).
  std::span<const float> reference_logprob;  ///< Needed when kl.coefficient > 0, else empty.
  std::span<const float> advantage;          ///< Constant over a sequence, or per token.
  std::span<const std::uint8_t> mask;        ///< 1: trained. Values at other places are never read.
  std::span<const SequenceRange> sequences;  ///< Covers the arrays without overlap.
  std::span<const float> entropy;            ///< For the metric; may be empty.
};

/// Sums over one optimizer step, carried from micro-batch to micro-batch; what they are divided by is inside.
struct LossTotals {
  double loss = 0;          ///< Already divided: the value of the objective.
  double policy_loss = 0;   ///< Its policy part.
  double kl_loss = 0;       ///< Its KL part, without the coefficient.
  std::int64_t tokens = 0;  ///< Trained tokens seen.
  std::int64_t clipped_high = 0, clipped_low = 0, clipped_dual = 0; ///< Tokens where the clip took the gradient.
  double neg_log_ratio = 0; ///< Sum of proximal - logprob: ppo_kl after division.
  double ratio = 0;         ///< Sum of the ratio.
  double importance = 0;    ///< Sum of the importance weight after truncation.
  std::int64_t importance_truncated = 0; ///< Tokens whose weight was changed by the bounds.
  double entropy = 0;       ///< Sum of the given entropies.
  void add(const LossTotals& other); ///< For the parts of other ranks.
};

/// Averages of a LossTotals; all 0 without tokens.
struct LossMetrics {
  double loss = 0, policy_loss = 0, kl_loss = 0;
  double clip_fraction = 0, clip_fraction_high = 0, clip_fraction_low = 0, clip_fraction_dual = 0;
  double ppo_kl = 0, ratio_mean = 0, importance_mean = 0, importance_truncated_fraction = 0, entropy = 0;
};
[[nodiscard]] LossMetrics metrics(const LossTotals& totals);

struct LossResult {
  double loss = 0;                   ///< This micro-batch's share of the objective; shares add up to it.
  std::vector<float> dloss_dlogprob; ///< [n]; exactly 0 where the mask is not set.
};

/// The policy term (clip, GSPO or CISPO), importance correction and KL of one micro-batch.
/// Adds to `totals` sequence by sequence, so that totals too are the same bits for every cut of the same order.
/// Log-ratios are clamped to +-20 before they are exponentiated; beyond that the ratio is a constant.
/// Errors: kInvalidArgument for arrays of unequal length; kCorrupt for a log-prob or advantage of a trained token that is not finite.
[[nodiscard]] Result<LossResult> policy_loss(const TokenBatch& batch, const LossOptions& options, const Denominator& denominator,
                                             LossTotals& totals);

/// Cross-entropy of given targets: -logprob, weighted as the denominator says. Only logprob, mask and sequences are read.
/// Errors: as policy_loss.
[[nodiscard]] Result<LossResult> cross_entropy_loss(const TokenBatch& batch, const Denominator& denominator, LossTotals& totals);

/// KL estimate of one token, l = logp - logp_ref, and the derivative that belongs into a loss (ratio = pi / behaviour).
struct KlTerm {
  double value = 0;
  double derivative = 0;
};
[[nodiscard]] KlTerm kl_term(double l, double ratio, KlEstimator estimator, KlWeight weight);

} // namespace troupe::rl
