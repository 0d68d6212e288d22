/// @file
/// The name of every metric, once. Suffix = how values of a step are folded: /mean, /max, /min; others are the last
/// value or a sum. The names are those users of RL trainers know (prime-rl, verl, TorchTitan).
#pragma once

#include <string_view>

namespace troupe::observe::names {

using Name = std::string_view;

// Reward and groups.
inline constexpr Name kRewardMean = "reward/mean";
inline constexpr Name kRewardStd = "reward/std";
inline constexpr Name kRewardMin = "reward/min";
inline constexpr Name kRewardMax = "reward/max";
inline constexpr Name kZeroStdGroups = "reward/frac_zero_std";  ///< Share of groups whose rewards are all equal.
inline constexpr Name kSolveAll = "reward/solve_all";           ///< Share of groups solved by every sample.
inline constexpr Name kSolveNone = "reward/solve_none";
inline constexpr Name kAdvantageMean = "critic/advantages/mean";
inline constexpr Name kAdvantageMax = "critic/advantages/max";
inline constexpr Name kAdvantageMin = "critic/advantages/min";

// Lengths, in tokens.
inline constexpr Name kResponseLengthMean = "response_length/mean";
inline constexpr Name kResponseLengthMax = "response_length/max";
inline constexpr Name kResponseLengthMin = "response_length/min";
inline constexpr Name kResponseClipRatio = "response_length/clip_ratio";  ///< Share of samples cut at the token limit.

// Policy and optimizer.
inline constexpr Name kLoss = "loss/mean";
inline constexpr Name kPgLoss = "actor/pg_loss";
inline constexpr Name kPgClipFraction = "actor/pg_clipfrac";
inline constexpr Name kPgClipFractionLower = "actor/pg_clipfrac_lower";
inline constexpr Name kPpoKl = "actor/ppo_kl";
inline constexpr Name kKlLoss = "actor/kl_loss";
inline constexpr Name kEntropy = "actor/entropy";
inline constexpr Name kGradNorm = "optim/grad_norm";  ///< Before clipping.
inline constexpr Name kLearningRate = "optim/lr";

// Parity of trainer and generator.
inline constexpr Name kMismatchKlMean = "mismatch_kl/all/mean";
inline constexpr Name kMismatchKlMax = "mismatch_kl/all/max";
inline constexpr Name kLogprobDiffMean = "bit_wise/logprob_diff/mean";  ///< Absent when nothing was compared.
inline constexpr Name kLogprobDiffMax = "bit_wise/logprob_diff/max";    ///< Absent when nothing was compared.
inline constexpr Name kRatioTokensDifferent = "bit_wise/ratio_tokens_different";
inline constexpr Name kTokensCompared = "bit_wise/tokens_compared";
inline constexpr Name kImportanceRatioMean = "sampling_importance_ratio/mean";
inline constexpr Name kImportanceRatioMax = "sampling_importance_ratio/max";

// Asynchrony, in optimizer steps or groups.
inline constexpr Name kOffPolicyMean = "off_policy/mean";  ///< Age of the trained samples.
inline constexpr Name kOffPolicyMax = "off_policy/max";
inline constexpr Name kOffPolicyInFlight = "off_policy/in_flight";
inline constexpr Name kOffPolicyInQueue = "off_policy/in_queue";
inline constexpr Name kOffPolicyDropped = "off_policy/dropped";
inline constexpr Name kDispatcherInFlight = "dispatcher/inflight";
inline constexpr Name kDispatcherCancelled = "dispatcher/cancelled";
inline constexpr Name kDispatcherErrored = "dispatcher/errored";
inline constexpr Name kPolicyVersion = "watcher/policy_version";
inline constexpr Name kPartialRatio = "partial_ratio";  ///< Share of samples whose tokens have more than one version.
inline constexpr Name kTrainerIdle = "trainer/idle_ratio";
inline constexpr Name kRolloutIdle = "rollouter/idle_ratio";

// Generation engine.
inline constexpr Name kKvUsage = "kv_cache_usage_perc";
inline constexpr Name kPreemptions = "num_preemptions_total";
inline constexpr Name kRequestsRunning = "num_requests_running";
inline constexpr Name kRequestsWaiting = "num_requests_waiting";
inline constexpr Name kPrefixHitRate = "prefix_cache_hit_rate";
inline constexpr Name kDraftAcceptance = "draft_acceptance_rate";  ///< Share of the tokens guessed ahead that were right.
inline constexpr Name kGeneratedTokens = "generation_tokens_total";

// Time (seconds) and speed.
inline constexpr Name kTimeStep = "time/step";
inline constexpr Name kTimeWaitForBatch = "time/wait_for_batch";
inline constexpr Name kTimeWaitForPolicy = "time/wait_for_policy";
inline constexpr Name kTimeBroadcastWeights = "time/broadcast_weights";
inline constexpr Name kTimeSaveCheckpoint = "time/save_ckpt";
inline constexpr Name kTimeForwardBackward = "time/forward_backward";
inline constexpr Name kThroughput = "perf/throughput";   ///< Trained tokens per second of wall time.
inline constexpr Name kPeakMemory = "perf/peak_memory";  ///< MiB.
inline constexpr Name kTokensSeen = "perf/tokens_seen";
inline constexpr Name kMetricsDropped = "observe/metrics_dropped";

// Evaluation: "eval/<task>/accuracy".
inline constexpr Name kEvalPrefix = "eval/";

}  // namespace troupe::observe::names
