/// @file
/// What the config says about rewards, advantages, losses and tasks. Every convention has a name; none is implicit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "data/options.h"

namespace troupe::rl {

/// What a group's rewards are compared with.
enum class Baseline {
  kGroupMean,   ///< GRPO: r - mean(r).
  kLeaveOneOut, ///< RLOO: r - mean of the others = G/(G-1) (r - mean).
};

/// What the centred rewards are divided by.
enum class StdConvention {
  kNone,       ///< Nothing (Dr.GRPO, RLOO).
  kSample,     ///< sqrt(sum (r-mean)^2 / (G-1)) + eps, as verl, slime, TRL and OpenRLHF do.
  kPopulation, ///< sqrt(sum (r-mean)^2 / G) + eps.
};

struct AdvantageOptions {
  Baseline baseline = Baseline::kGroupMean;    ///< What a reward is compared with.
  StdConvention std = StdConvention::kSample;  ///< What the difference is divided by.
  double eps = 1e-6;                           ///< Added to the standard deviation.
  bool drop_zero_signal = true;                ///< Groups whose trained samples all have the same reward are left out and replaced.
};

enum class PolicyLoss {
  kClip,  ///< PPO / GRPO / DAPO: -min(rho A, clip(rho, 1-low, 1+high) A) per token.
  kGspo,  ///< The same with one ratio per sequence, exp(mean of the log-ratios).
  kCispo, ///< -stop_gradient(clip(rho)) A logp: clipped tokens keep a gradient.
};

/// Which log-probs the ratio rho is taken against.
enum class RatioAnchor {
  kBehaviour, ///< Those recorded when the token was sampled: corrects for stale weights and clips it in one.
  kProximal,  ///< Those of the trainer before the step; the gap to the sampler is corrected by `Importance`.
};

/// Correction of the gap between the sampler's and the trainer's log-probs, w = exp(proximal - behaviour), detached.
enum class Importance {
  kNone,
  kToken,    ///< clamp(w, low, high) per token (truncated importance sampling).
  kSequence, ///< min(exp(sum of the log-ratios), high) per sequence.
  kMask,     ///< w where low <= w <= high, else 0 (IcePop).
};

enum class KlEstimator {
  kK1, ///< l = logp - logp_ref
  kK2, ///< l^2 / 2
  kK3, ///< exp(-l) - 1 + l
};

enum class KlWeight {
  kRatio, ///< Times pi / behaviour per token; right for stale samples too.
  kNone,  ///< Right only for k2 and only when the sampler held the trainer's weights.
};

struct KlOptions {
  double coefficient = 0;                      ///< Weight of the KL to the reference policy in the loss; 0: no reference is kept.
  KlEstimator estimator = KlEstimator::kK2;    ///< k1, k2 or k3.
  KlWeight weight = KlWeight::kRatio;          ///< What each token's estimate is multiplied by.
};

/// How token losses become one number. Counts are those of the whole batch, over all ranks and micro-batches.
enum class Aggregation {
  kTokenMean,        ///< Sum over tokens / tokens.
  kSeqMeanTokenMean, ///< Mean over sequences of the mean over tokens.
  kSeqMeanTokenSum,  ///< Mean over sequences of the sum over tokens.
  kConstant,         ///< Sum over tokens / (sequences * constant_tokens): Dr.GRPO. Fully masked sequences count here.
};

struct LossOptions {
  PolicyLoss policy = PolicyLoss::kClip;            ///< Form of the policy term.
  RatioAnchor anchor = RatioAnchor::kBehaviour;     ///< What the ratio is taken against.
  double clip_low = 0.2;                            ///< Ratios below 1 - clip_low are clipped.
  double clip_high = 0.2;                           ///< Ratios above 1 + clip_high are clipped.
  double dual_clip = 0;                             ///< Bound c > 1 of the loss for negative advantages, -c A; 0: off.
  Importance importance = Importance::kNone;        ///< Correction of sampler against trainer; needs anchor = proximal.
  double importance_low = 0;                        ///< Lower bound of the correction.
  double importance_high = 2;                       ///< Upper bound of the correction.
  KlOptions kl;
  Aggregation aggregation = Aggregation::kSeqMeanTokenMean; ///< How tokens are averaged.
  double constant_tokens = 0;                        ///< Divisor of aggregation = constant: the longest response the config allows.
};

struct OverlongOptions {
  std::int64_t penalty_buffer = 0; ///< Responses that use the last this many tokens of the limit lose up to `penalty` reward; 0: off.
  double penalty = 1;              ///< Reward lost at the limit.
  bool filter = false;             ///< Truncated samples count in their group's statistics, then are left out of the loss.
};

/// Everything that makes an algorithm; as it stands, "grpo". Start from `algorithm_defaults("grpo")` and set what differs.
struct AlgorithmOptions {
  AdvantageOptions advantage;
  LossOptions loss;
  OverlongOptions overlong;
};

/// One grader. `type` names a row of the table in reward.cpp.
struct RewardOptions {
  std::string type = "exact";        ///< exact, number, regex, boxed or sum.
  std::string marker;                ///< exact, number: the answer is what follows the last marker on its line; empty: whole reply / last number.
  std::string pattern;               ///< regex: PCRE2; the last match counts, its first group is compared with the answer if there is one.
  bool ignore_case = false;          ///< exact, regex: ASCII letters compare equal in either case.
  double tolerance = 0;              ///< number: largest accepted difference; 0: equal as exact numbers.
  double weight = 1;                 ///< As a part of a sum.
  std::vector<RewardOptions> parts;  ///< sum: score = sum of weight * score of the part.
};

struct ProgramTaskOptions {
  std::vector<std::string> command;    ///< Program and arguments; started without a shell.
  std::string folder;                  ///< Its working folder; empty: this process's.
  Duration start_deadline = std::chrono::seconds(30); ///< Until it has answered `hello`.
  std::int64_t restarts = 3;           ///< Failures in a row that are answered with a new process; one more gives up.
  Bytes output_limit{1 << 20};         ///< Longest answer; longer ones kill the program.
  Bytes stderr_tail{16 << 10};         ///< How much of its last stderr goes into error messages and logs.
};

struct TaskOptions {
  std::string type = "arithmetic";     ///< A row of rl/registry.cpp: arithmetic, jsonl or program.
  std::uint64_t seed = 0;              ///< Chooses the problems, together with split and index.
  std::string system_prompt;           ///< Put before every problem's messages; empty: none.
  Duration deadline = std::chrono::seconds(10); ///< For one reset or step.
  double reward_min = -1;              ///< A reward outside [reward_min, reward_max] is an error of the task.
  double reward_max = 1;               ///< See reward_min.
  RewardOptions reward;                ///< arithmetic, jsonl: how replies are graded.
  data::ArithmeticOptions arithmetic;
  data::TaskFileOptions jsonl;
  ProgramTaskOptions program;
};

} // namespace troupe::rl
