#include "rl/loss.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace troupe::rl {
namespace {

constexpr double kLogRatioMax = 20; // e^20 = 5e8: a larger ratio is a broken sample, not information

/// exp of a clamped log-ratio, and whether its derivative is still itself.
struct Ratio {
  double value = 1;
  bool free = true;
};

Ratio ratio_of(double log_ratio) {
  const double clamped = std::clamp(log_ratio, -kLogRatioMax, kLogRatioMax);
  return {std::exp(clamped), clamped == log_ratio};
}

/// The objective of one token (or sequence) for one ratio: value and derivative by the log-ratio.
struct Surrogate {
  double value = 0;
  double derivative = 0;
  bool high = false, low = false, dual = false;
};

Surrogate clipped_surrogate(const Ratio& ratio, double advantage, const LossOptions& o) {
  const double clipped = std::clamp(ratio.value, 1 - o.clip_low, 1 + o.clip_high);
  const double plain = -ratio.value * advantage;
  const double bounded = -clipped * advantage;
  Surrogate s;
  if (plain >= bounded) {
    s.value = plain;
    s.derivative = ratio.free ? plain : 0;
  } else {
    s.value = bounded;
    s.high = advantage > 0;
    s.low = advantage < 0;
  }
  if (o.dual_clip > 0 && advantage < 0 && -o.dual_clip * advantage < s.value)
    s = Surrogate{-o.dual_clip * advantage, 0, false, false, true};
  return s;
}

Surrogate cispo_surrogate(const Ratio& ratio, double advantage, double logprob, const LossOptions& o) {
  const double weight = std::clamp(ratio.value, 1 - o.clip_low, 1 + o.clip_high);
  Surrogate s{-weight * advantage * logprob, -weight * advantage};
  s.high = weight < ratio.value;
  s.low = weight > ratio.value;
  return s;
}

/// A view of one sequence of a batch: the trained tokens and what the options say about them.
class SequenceLoss {
 public:
  SequenceLoss(const TokenBatch& batch, const LossOptions& options, double weight, std::span<float> gradient)
      : batch_(batch), options_(options), weight_(weight), gradient_(gradient) {}

  LossTotals run(SequenceRange range) {
    for (std::int32_t i = range.begin; i < range.end; ++i)
      if (batch_.mask[static_cast<std::size_t>(i)] != 0) tokens_.push_back(static_cast<std::size_t>(i));
    add_importance();
    if (options_.policy == PolicyLoss::kGspo) {
      add_sequence_ratio();
    } else {
      add_token_ratios();
    }
    if (options_.kl.coefficient > 0) add_kl();
    finish();
    return totals_;
  }

 private:
  [[nodiscard]] double anchor(std::size_t i) const {
    if (options_.anchor == RatioAnchor::kBehaviour) return batch_.behaviour_logprob[i];
    return batch_.proximal_logprob.empty() ? batch_.logprob[i] : batch_.proximal_logprob[i];
  }
  [[nodiscard]] double log_ratio(std::size_t i) const { return static_cast<double>(batch_.logprob[i]) - anchor(i); }
  [[nodiscard]] double sampler_gap(std::size_t i) const { return anchor(i) - static_cast<double>(batch_.behaviour_logprob[i]); }

  void add_importance() {
    importance_.assign(tokens_.size(), 1.0);
    if (options_.importance == Importance::kNone) return;
    double whole = 0;
    for (std::size_t i : tokens_) whole += sampler_gap(i);
    for (std::size_t k = 0; k < tokens_.size(); ++k) {
      const bool sequence = options_.importance == Importance::kSequence;
      const double w = ratio_of(sequence ? whole : sampler_gap(tokens_[k])).value;
      double& bounded = importance_[k];
      if (sequence) {
        bounded = std::min(w, options_.importance_high);
      } else if (options_.importance == Importance::kToken) {
        bounded = std::clamp(w, options_.importance_low, options_.importance_high);
      } else {
        bounded = w >= options_.importance_low && w <= options_.importance_high ? w : 0;
      }
      totals_.importance_truncated += bounded != w ? 1 : 0;
    }
  }

  void count(const Surrogate& s) {
    totals_.clipped_high += s.high ? 1 : 0;
    totals_.clipped_low += s.low ? 1 : 0;
    totals_.clipped_dual += s.dual ? 1 : 0;
  }

  void add_token_ratios() {
    derivative_.resize(tokens_.size());
    for (std::size_t k = 0; k < tokens_.size(); ++k) {
      const std::size_t i = tokens_[k];
      const Ratio ratio = ratio_of(log_ratio(i));
      const double advantage = batch_.advantage[i];
      const Surrogate s = options_.policy == PolicyLoss::kCispo ? cispo_surrogate(ratio, advantage, batch_.logprob[i], options_)
                                                                : clipped_surrogate(ratio, advantage, options_);
      totals_.policy_loss += importance_[k] * s.value;
      derivative_[k] = importance_[k] * s.derivative;
      totals_.ratio += ratio.value;
      count(s);
    }
  }

  /// s = exp(mean log-ratio); every token's log-prob moves it by s / n.
  void add_sequence_ratio() {
    if (tokens_.empty()) return;
    double sum = 0;
    for (std::size_t i : tokens_) sum += log_ratio(i);
    const auto n = static_cast<double>(tokens_.size());
    const Ratio ratio = ratio_of(sum / n);
    double derivative = 0;
    for (std::size_t k = 0; k < tokens_.size(); ++k) {
      const Surrogate s = clipped_surrogate(ratio, batch_.advantage[tokens_[k]], options_);
      totals_.policy_loss += importance_[k] * s.value;
      derivative += importance_[k] * s.derivative;
      totals_.ratio += ratio.value;
      count(s);
    }
    derivative_.assign(tokens_.size(), derivative / n);
  }

  void add_kl() {
    for (std::size_t k = 0; k < tokens_.size(); ++k) {
      const std::size_t i = tokens_[k];
      const double l = static_cast<double>(batch_.logprob[i]) - static_cast<double>(batch_.reference_logprob[i]);
      const double ratio = ratio_of(static_cast<double>(batch_.logprob[i]) - static_cast<double>(batch_.behaviour_logprob[i])).value;
      const KlTerm term = kl_term(l, ratio, options_.kl.estimator, options_.kl.weight);
      totals_.kl_loss += term.value;
      derivative_[k] += options_.kl.coefficient * term.derivative;
    }
  }

  void finish() {
    totals_.tokens = static_cast<std::int64_t>(tokens_.size());
    for (std::size_t k = 0; k < tokens_.size(); ++k) {
      const std::size_t i = tokens_[k];
      gradient_[i] = static_cast<float>(weight_ * derivative_[k]);
      totals_.neg_log_ratio -= log_ratio(i);
      totals_.importance += importance_[k];
      if (!batch_.entropy.empty()) totals_.entropy += batch_.entropy[i];
    }
    totals_.policy_loss *= weight_;
    totals_.kl_loss *= weight_;
    totals_.loss = totals_.policy_loss + options_.kl.coefficient * totals_.kl_loss;
  }

  const TokenBatch& batch_;
  const LossOptions& options_;
  double weight_;
  std::span<float> gradient_;
  std::vector<std::size_t> tokens_;
  std::vector<double> importance_, derivative_;
  LossTotals totals_;
};

Status check_length(std::string_view name, std::size_t size, std::size_t expected, bool may_be_empty) {
  if (size == expected || (may_be_empty && size == 0)) return {};
  return fail(ErrorCode::kInvalidArgument, std::string(name) + " has " + std::to_string(size) + " entries for " +
                                               std::to_string(expected) + " tokens");
}

Status check_ranges(const TokenBatch& batch) {
  std::int32_t next = 0;
  for (const SequenceRange& range : batch.sequences) {
    if (range.begin != next || range.end < range.begin)
      return fail(ErrorCode::kInvalidArgument, "sequences must cover the tokens in order, without gaps");
    next = range.end;
  }
  if (static_cast<std::size_t>(next) != batch.mask.size())
    return fail(ErrorCode::kInvalidArgument, "sequences cover " + std::to_string(next) + " of " + std::to_string(batch.mask.size()) + " tokens");
  return {};
}

Status check_finite(const TokenBatch& batch, std::string_view name, std::span<const float> values) {
  if (values.empty()) return {};
  for (std::size_t s = 0; s < batch.sequences.size(); ++s)
    for (std::int32_t i = batch.sequences[s].begin; i < batch.sequences[s].end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (batch.mask[at] != 0 && !std::isfinite(values[at]))
        return fail(ErrorCode::kCorrupt, std::string(name) + " of token " + std::to_string(i - batch.sequences[s].begin) +
                                             " of sequence " + std::to_string(s) + " is " + std::to_string(values[at]));
    }
  return {};
}

Status check_policy_batch(const TokenBatch& batch, const LossOptions& options) {
  const std::size_t n = batch.mask.size();
  const bool needs_reference = options.kl.coefficient > 0;
  TROUPE_TRY_STATUS(check_length("logprob", batch.logprob.size(), n, false));
  TROUPE_TRY_STATUS(check_length("behaviour_logprob", batch.behaviour_logprob.size(), n, false));
  TROUPE_TRY_STATUS(check_length("proximal_logprob", batch.proximal_logprob.size(), n, true));
  TROUPE_TRY_STATUS(check_length("reference_logprob", batch.reference_logprob.size(), n, !needs_reference));
  TROUPE_TRY_STATUS(check_length("advantage", batch.advantage.size(), n, false));
  TROUPE_TRY_STATUS(check_length("entropy", batch.entropy.size(), n, true));
  TROUPE_TRY_STATUS(check_ranges(batch));
  TROUPE_TRY_STATUS(check_finite(batch, "log-prob", batch.logprob));
  TROUPE_TRY_STATUS(check_finite(batch, "behaviour log-prob", batch.behaviour_logprob));
  TROUPE_TRY_STATUS(check_finite(batch, "proximal log-prob", batch.proximal_logprob));
  if (needs_reference) TROUPE_TRY_STATUS(check_finite(batch, "reference log-prob", batch.reference_logprob));
  return check_finite(batch, "advantage", batch.advantage);
}

std::int64_t trained_tokens(std::span<const std::uint8_t> mask, SequenceRange range) {
  return std::count_if(mask.begin() + range.begin, mask.begin() + range.end, [](std::uint8_t m) { return m != 0; });
}

} // namespace

KlTerm kl_term(double l, double ratio, KlEstimator estimator, KlWeight weight) {
  const double k3 = std::expm1(-std::clamp(l, -kLogRatioMax, kLogRatioMax)) + l;
  const double value = estimator == KlEstimator::kK1 ? l : estimator == KlEstimator::kK2 ? 0.5 * l * l : k3;
  if (weight == KlWeight::kNone) {
    if (estimator == KlEstimator::kK1) return {value, 1};
    if (estimator == KlEstimator::kK2) return {value, l};
    return {value, l - k3}; // d/dlogp (e^-l - 1 + l) = 1 - e^-l
  }
  // k2: the ratio is a constant. k1 and k3: the gradient goes through it, ratio * (k + dk/dlogp).
  if (estimator == KlEstimator::kK1) return {ratio * value, ratio * (l + 1)};
  return {ratio * value, ratio * l};
}

Result<LossResult> policy_loss(const TokenBatch& batch, const LossOptions& options, const Denominator& denominator, LossTotals& totals) {
  TROUPE_TRY_STATUS(check_policy_batch(batch, options));
  LossResult result;
  result.dloss_dlogprob.assign(batch.mask.size(), 0.0f);
  for (const SequenceRange& range : batch.sequences) {
    const double weight = denominator.weight(trained_tokens(batch.mask, range));
    const LossTotals part = SequenceLoss(batch, options, weight, result.dloss_dlogprob).run(range);
    totals.add(part);
    result.loss += part.loss;
  }
  return result;
}

Result<LossResult> cross_entropy_loss(const TokenBatch& batch, const Denominator& denominator, LossTotals& totals) {
  TROUPE_TRY_STATUS(check_length("logprob", batch.logprob.size(), batch.mask.size(), false));
  TROUPE_TRY_STATUS(check_ranges(batch));
  TROUPE_TRY_STATUS(check_finite(batch, "log-prob", batch.logprob));
  LossResult result;
  result.dloss_dlogprob.assign(batch.mask.size(), 0.0f);
  for (const SequenceRange& range : batch.sequences) {
    LossTotals part;
    part.tokens = trained_tokens(batch.mask, range);
    const double weight = denominator.weight(part.tokens);
    for (auto i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end); ++i) {
      if (batch.mask[i] == 0) continue;
      part.loss -= weight * static_cast<double>(batch.logprob[i]);
      result.dloss_dlogprob[i] = static_cast<float>(-weight);
    }
    totals.add(part);
    result.loss += part.loss;
  }
  return result;
}

} // namespace troupe::rl
