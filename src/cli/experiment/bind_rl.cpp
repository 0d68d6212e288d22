// [rollout], [rl], [eval]
#include "cli/experiment/bindings.h"

namespace troupe::experiment {

void bind_sampling(config::Section& s, generate::SamplingParams& o) {
  s.field("temperature", o.temperature, "Divides the logits; 0 = greedy.").min(0).max(100);
  s.field("top_p", o.top_p, "Keeps the smallest set of most likely tokens with at least this mass. 1 in rl stages.")
      .above(0)
      .max(1);
  s.field("top_k", o.top_k, "Keeps this many most likely tokens; 0 = all. 0 in rl stages.").min(0);
  s.field("min_p", o.min_p,
          "Keeps tokens with at least this share of the most likely one's probability. 0 in rl stages.")
      .min(0)
      .max(1);
  s.field("max_new_tokens", o.max_new_tokens, "Longest completion, in tokens.").min(1);
  s.field("stop", o.stop_strings, "Texts that end a completion, beside the end of the turn.");
  s.field("stop_ids", o.stop_ids, "Token ids that end a completion, beside those of the prompt format.").min(0);
}

namespace {

void bind_engine(config::Section& s, generate::EngineOptions& o) {
  s.field("kv_cache", o.kv_memory, "Memory of each worker's KV cache.").min(1 << 16);
  s.field("kv_pages", o.kv_pages, "Pages of the KV cache; 0 = as many as fit kv_cache.").min(0);
  s.field("page_tokens", o.page_tokens, "Tokens in a page of the KV cache.").min(1).max(1024);
  s.field("sequences", o.sequences_max, "Requests of a worker that generate at once.").min(1).max(65536);
  s.field("chunk_tokens", o.prefill_tokens,
          "Prompt tokens computed in one step, beside one token of every generating request.")
      .min(1);
  s.field("waiting_max", o.waiting_max, "Requests of a worker that may wait for space; more are refused.").min(1);
  s.field("context_tokens", o.context_tokens, "Longest prompt plus completion; 0 = what the model was made for.")
      .min(0);
  s.field("cached_prompts", o.cached_prompts_max,
          "Prompts kept for further samples of their group; 0 = none are shared.")
      .min(0);
  s.field("draft_tokens", o.draft_tokens,
          "Tokens that the model's own block for further tokens (MTP) guesses ahead a step; the samples stay the same, bit for bit. 0 = none.")
      .min(0)
      .max(1);
  s.choice(
      "on_update", o.on_update,
      {{"keep_kv", generate::OnUpdate::kKeepKv}, {"recompute_kv", generate::OnUpdate::kRecomputeKv}},
      "What running requests do with their KV entries when new weights arrive: go on with them, or prefill again.");
}

void bind_advantage(config::Section& s, rl::AdvantageOptions& o) {
  s.choice("baseline", o.baseline,
           {{"group_mean", rl::Baseline::kGroupMean}, {"leave_one_out", rl::Baseline::kLeaveOneOut}},
           "What a reward is compared with.");
  s.choice("std", o.std,
           {{"none", rl::StdConvention::kNone},
            {"sample", rl::StdConvention::kSample},
            {"population", rl::StdConvention::kPopulation}},
           "What the difference is divided by: nothing, or the group's standard deviation over G-1 or G, plus eps.");
  s.field("eps", o.eps, "Added to the standard deviation.").min(0);
  s.field("drop_zero_signal", o.drop_zero_signal,
          "Groups whose trained samples all have the same reward are left out and replaced.");
}

void bind_kl(config::Section& s, rl::KlOptions& o) {
  s.field("coefficient", o.coefficient,
          "Weight of the KL to the reference policy in the loss; 0 = no reference is kept.")
      .min(0);
  s.choice("estimator", o.estimator,
           {{"k1", rl::KlEstimator::kK1}, {"k2", rl::KlEstimator::kK2}, {"k3", rl::KlEstimator::kK3}},
           "k1 = log-ratio, k2 = its square / 2, k3 = exp(-l) - 1 + l.");
  s.choice("weight", o.weight, {{"ratio", rl::KlWeight::kRatio}, {"none", rl::KlWeight::kNone}},
           "What each token's estimate is multiplied by: pi / behaviour (right for stale samples), or nothing.");
}

void bind_loss(config::Section& s, rl::LossOptions& o) {
  s.choice("policy", o.policy,
           {{"clip", rl::PolicyLoss::kClip}, {"gspo", rl::PolicyLoss::kGspo}, {"cispo", rl::PolicyLoss::kCispo}},
           "Form of the policy term.");
  s.choice("anchor", o.anchor, {{"behaviour", rl::RatioAnchor::kBehaviour}, {"proximal", rl::RatioAnchor::kProximal}},
           "What the ratio is taken against: the log-probs of the sampler, or of the trainer before the step.");
  s.field("clip_low", o.clip_low, "Ratios below 1 - clip_low are clipped.").min(0).max(1);
  s.field("clip_high", o.clip_high, "Ratios above 1 + clip_high are clipped.").min(0);
  s.field("dual_clip", o.dual_clip, "Bound c of the loss for negative advantages, -c A; 0 = off, else above 1.").min(0);
  s.choice("importance", o.importance,
           {{"none", rl::Importance::kNone},
            {"token", rl::Importance::kToken},
            {"sequence", rl::Importance::kSequence},
            {"mask", rl::Importance::kMask}},
           "Correction of sampler against trainer; needs anchor = \"proximal\".");
  s.field("importance_low", o.importance_low, "Lower bound of the correction.").min(0);
  s.field("importance_high", o.importance_high,
          "Upper bound of the correction: the cap of truncated importance sampling.")
      .above(0);
  s.choice("aggregation", o.aggregation,
           {{"token_mean", rl::Aggregation::kTokenMean},
            {"seq_mean_token_mean", rl::Aggregation::kSeqMeanTokenMean},
            {"seq_mean_token_sum", rl::Aggregation::kSeqMeanTokenSum},
            {"constant", rl::Aggregation::kConstant}},
           "How token losses become one number, over the whole batch.");
  s.field("constant_tokens", o.constant_tokens, "Divisor of aggregation = \"constant\"; 0 = the longest completion.")
      .min(0);
  s.section("kl", o.kl, bind_kl, "KL to a frozen copy of the policy.");
}

void bind_overlong(config::Section& s, rl::OverlongOptions& o) {
  s.field("penalty_buffer", o.penalty_buffer,
          "Responses that use the last this many tokens of the limit lose up to `penalty` reward; 0 = off.")
      .min(0);
  s.field("penalty", o.penalty, "Reward lost at the limit.").min(0);
  s.field("filter", o.filter, "Truncated samples count in their group's statistics, then are left out of the loss.");
}

}  // namespace

void bind_rollout(config::Section& s, RolloutSection& o) {
  s.field("workers", o.workers, "Rollout worker processes; `troupe scale rollout=N` changes it live.").max(4096).hot();
  s.field("spares", o.spares, "Workers started beyond these: they pull every version and get no work until one is lost.").max(4096);
  s.field("threads", o.threads, "Compute threads of each worker.").min(1).max(1024);
  s.field("turns_max", o.turns_max, "Turns of an episode; one that the task would go on with ends as truncated.").min(1).max(65536);
  s.field("max_in_flight", o.limits.worker_samples_max, "Samples assigned to one worker at a time.").min(1);
  bind_engine(s, o.engine);
  s.field("drain_deadline", o.drain_deadline, "What a leaving worker gets to finish or hand back its samples.").min(0);
  s.field("pull_deadline", o.limits.pull_deadline, "A worker that has not pulled new weights by then is replaced.")
      .above(0);
  s.field("pull_retry", o.limits.pull_retry, "Pause before a failed pull is asked for again.").above(0);
  s.field("command_resend", o.limits.command_resend, "An unanswered command is sent again after this long.").above(0);
  s.field("sample_silence", o.limits.sample_silence, "A sample without news for this long is re-issued elsewhere.")
      .above(0);
  s.field("progress_deadline", o.limits.progress_deadline,
          "Without any progress for this long the run fails, naming what hangs where.")
      .above(0);
  s.section("sampling", o.sampling, bind_sampling, "How completions are sampled.");
}

void bind_algorithm(config::Section& s, rl::AlgorithmOptions& o) {
  s.section("advantage", o.advantage, bind_advantage,
            "From the rewards of a group to advantages. Defaults follow rl.algorithm.");
  s.section("loss", o.loss, bind_loss, "The policy loss. Defaults follow rl.algorithm.");
  s.section("overlong", o.overlong, bind_overlong, "Responses that reach the token limit.");
}

void bind_rl(config::Section& s, RlSection& o) {
  protocol::RolloutPlan& p = o.plan;
  s.choice("algorithm", o.algorithm, {"grpo", "dr_grpo", "dapo", "rloo", "gspo", "cispo"},
           "Named set of conventions: the defaults of rl.advantage, rl.loss and rl.overlong.");
  s.field("group_size", p.samples_per_prompt, "Samples of a prompt, G.").min(2).max(65536);
  s.field("prompts_per_step", p.prompts_per_step, "Groups in a training batch, P.").min(1).max(65536);
  s.field("staleness", p.staleness,
          "Steps that generation may run ahead, S; 0 = on policy: generation waits for the new weights.")
      .max(1024);
  s.field("window_fraction", p.window_fraction,
          "Part of the (S+1) P active groups that a batch may reach beyond the oldest one; without effect when "
          "staleness is 0.")
      .min(0)
      .max(1);
  s.field("max_age", p.max_age,
          "Hard bound on the age of a trained sample, in steps; unset: the worst age the loop allows.");
  s.field("attempts", p.attempts, "Times a sample is tried before its group is cancelled; at its second identical failure at the latest.").min(1);
  s.field("empty_batches_max", p.empty_batches_max,
          "Batches in a row without one trainable group before the run fails.")
      .min(1);
  s.field("prompt_limit", p.prompt_limit, "Prompts in the stream; unset: endless.").min(1);
  bind_algorithm(s, o.options);
}

void bind_eval(config::Section& s, EvalSection& o) {
  s.field("problems", o.problems, "Held-out problems of one evaluation.").min(1).max(1 << 24);
  s.field("every", o.every, "Evaluate every n steps of an rl stage; 0 = never.").min(0).hot();
  s.field("before", o.before, "Evaluate before the first step of an rl stage.");
  s.field("after", o.after, "Evaluate after the last step of an rl stage.");
  s.field("max_new_tokens", o.max_new_tokens, "Longest answer, in tokens; 0 = rollout.sampling.max_new_tokens.").min(0);
}

}  // namespace troupe::experiment
