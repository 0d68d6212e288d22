#include "rl/algorithm.h"

#include <array>
#include <string>

namespace troupe::rl {
namespace {

AlgorithmOptions dr_grpo() {
  AlgorithmOptions o;
  o.advantage.std = StdConvention::kNone;
  o.loss.aggregation = Aggregation::kConstant;
  return o;
}

AlgorithmOptions dapo() {
  AlgorithmOptions o;
  o.loss.clip_high = 0.28;
  o.loss.aggregation = Aggregation::kTokenMean;
  return o;
}

AlgorithmOptions rloo() {
  AlgorithmOptions o;
  o.advantage.baseline = Baseline::kLeaveOneOut;
  o.advantage.std = StdConvention::kNone;
  o.loss.aggregation = Aggregation::kSeqMeanTokenSum;
  return o;
}

AlgorithmOptions gspo() {
  AlgorithmOptions o;
  o.loss.policy = PolicyLoss::kGspo;
  o.loss.clip_low = 3e-4;  // the paper's bounds: sequence ratios stay much closer to 1 than token ratios
  o.loss.clip_high = 4e-4;
  return o;
}

AlgorithmOptions cispo() {
  AlgorithmOptions o;
  o.loss.policy = PolicyLoss::kCispo;
  o.loss.clip_low = 1; // no lower bound
  o.loss.clip_high = 0.28;
  o.loss.aggregation = Aggregation::kTokenMean;
  return o;
}

Status refuse(std::string text) { return fail(ErrorCode::kInvalidConfig, std::move(text)); }

Status check_kl(const KlOptions& kl, bool on_policy) {
  if (!(kl.coefficient >= 0)) return refuse("rl.loss.kl.coefficient = " + std::to_string(kl.coefficient) + " must not be negative");
  if (kl.coefficient == 0 || kl.weight == KlWeight::kRatio) return {};
  if (kl.estimator == KlEstimator::kK1)
    return refuse("rl.loss.kl.estimator = k1 without a weight has a gradient of zero mean: set rl.loss.kl.weight = \"ratio\", or estimator = \"k2\"");
  if (kl.estimator == KlEstimator::kK3)
    return refuse("rl.loss.kl.estimator = k3 without a weight descends the forward KL: set rl.loss.kl.weight = \"ratio\", or estimator = \"k2\"");
  if (!on_policy)
    return refuse("rl.loss.kl.weight = none is right only for samples of the newest weights: set it to \"ratio\", or staleness = 0");
  return {};
}

Status check_policy(const LossOptions& loss) {
  if (loss.dual_clip != 0 && !(loss.dual_clip > 1))
    return refuse("rl.loss.dual_clip = " + std::to_string(loss.dual_clip) + " must be 0 (off) or above 1 (3 is usual)");
  if (loss.dual_clip != 0 && loss.policy != PolicyLoss::kClip)
    return refuse("rl.loss.dual_clip belongs to loss.policy = clip: set dual_clip = 0, it would overwrite the bound of gspo and cispo");
  if (loss.policy == PolicyLoss::kGspo && loss.aggregation != Aggregation::kSeqMeanTokenMean)
    return refuse("rl.loss.policy = gspo has one ratio per sequence, and any other average lets long answers dominate: "
                  "set rl.loss.aggregation = \"seq_mean_token_mean\"");
  if (!(loss.clip_low >= 0 && loss.clip_low <= 1))
    return refuse("rl.loss.clip_low = " + std::to_string(loss.clip_low) + " must be in 0..1");
  if (!(loss.clip_high >= 0)) return refuse("rl.loss.clip_high = " + std::to_string(loss.clip_high) + " must not be negative");
  return {};
}

} // namespace

std::span<const AlgorithmRow> algorithms() {
  static const std::array<AlgorithmRow, 6> kRows = {{
      {"grpo", "group mean, sample standard deviation, clip 0.2, mean over sequences of the mean over tokens", AlgorithmOptions{}},
      {"dr_grpo", "group mean without division, sum over tokens / (sequences * constant_tokens)", dr_grpo()},
      {"dapo", "as grpo, clip 0.2 / 0.28, mean over all tokens", dapo()},
      {"rloo", "mean of the other samples as baseline, no division, sum over a sequence", rloo()},
      {"gspo", "one ratio per sequence", gspo()},
      {"cispo", "clipped ratio as a constant weight, every token keeps a gradient", cispo()},
  }};
  return kRows;
}

Result<AlgorithmOptions> algorithm_defaults(std::string_view name) {
  std::string known;
  for (const AlgorithmRow& row : algorithms()) {
    if (row.name == name) return row.options;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return fail(ErrorCode::kInvalidConfig, "unknown algorithm \"" + std::string(name) + "\": one of " + known);
}

Status validate(const AlgorithmOptions& options, bool on_policy) {
  const LossOptions& loss = options.loss;
  TROUPE_TRY_STATUS(check_policy(loss));
  if (loss.aggregation == Aggregation::kConstant && !(loss.constant_tokens >= 1))
    return refuse("rl.loss.aggregation = constant needs rl.loss.constant_tokens: set it to the longest response, max_new_tokens");
  if (loss.importance != Importance::kNone && loss.anchor == RatioAnchor::kBehaviour)
    return refuse("rl.loss.importance corrects twice when the ratio is already taken against the sampler: "
                  "set rl.loss.anchor = \"proximal\", or importance = \"none\"");
  if (!(loss.importance_low >= 0 && loss.importance_high > 0 && loss.importance_low <= loss.importance_high))
    return refuse("rl.loss.importance_low = " + std::to_string(loss.importance_low) + ", importance_high = " +
                  std::to_string(loss.importance_high) + " must satisfy 0 <= low <= high and high > 0");
  if (!(options.advantage.eps >= 0)) return refuse("rl.advantage.eps = " + std::to_string(options.advantage.eps) + " must not be negative");
  if (options.overlong.penalty_buffer < 0 || !(options.overlong.penalty >= 0))
    return refuse("rl.overlong.penalty_buffer and rl.overlong.penalty must not be negative");
  return check_kl(loss.kl, on_policy);
}

Status check_training_sampling(double top_p, std::int64_t top_k, double min_p) {
  if (top_p >= 1 && top_k <= 0 && min_p <= 0) return {};
  const std::string what = top_p < 1   ? "top_p = " + std::to_string(top_p)
                           : top_k > 0 ? "top_k = " + std::to_string(top_k)
                                       : "min_p = " + std::to_string(min_p);
  return refuse(what + " in training makes every ratio wrong by the probability that was cut off: "
                       "train with top_p = 1, top_k = 0, min_p = 0 and use the cut only in eval");
}

} // namespace troupe::rl
