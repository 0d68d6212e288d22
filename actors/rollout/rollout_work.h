/// @file
/// What a rollout worker computes: engine, prompts and episodes of the samples it holds. Lives on the work thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/environment.h"
#include "actors/messages/rollout.h"
#include "actors/policy/policy.h"
#include "actors/rollout/episode.h"
#include "actors/rollout/options.h"
#include "base/result.h"
#include "generate/engine.h"

namespace troupe::actors {

/// Where the worker's answers go. Called on the work thread.
struct RolloutOutput {
  std::function<void(EnvironmentCalls)> ask;
  std::function<void(SamplesDone)> done;
  std::function<void(SamplesFailed)> failed;
  std::function<void(WorkRefused)> refused;
  std::function<void(Drained)> drained;
};

class RolloutWork {
 public:
  RolloutWork(const RolloutWorkerOptions& options, Policy policy, std::string worker, std::uint32_t incarnation, RolloutOutput output);

  void take(GroupWork work);
  void answer(EnvironmentReplies replies);
  void cancel(const CancelWork& order);
  void drain(Duration deadline);
  /// The model's numbers were replaced by those of `version`.
  void weights_changed(PolicyVersion version) { engine_.weights_changed(version); }
  [[nodiscard]] model::Model& model() { return policy_.model; }
  [[nodiscard]] PolicyVersion version() const { return engine_.version(); }

  /// Computes nothing until `reset`.
  void pause() { paused_ = true; }
  /// Drops all work, drain included: a new head gives it out again.
  void reset();

  /// One engine step and what follows from it. False when there is nothing to compute.
  bool advance();
  /// Fails calls whose answer is overdue and ends a drain whose time is up.
  void check_deadlines();
  [[nodiscard]] RolloutGauges gauges();
  [[nodiscard]] Result<ProbeScored> score(const ScoreProbe& probe);

 private:
  using Clock = std::chrono::steady_clock;
  struct Sample {
    SampleWork work;
    std::uint64_t episode = 0;
    SampleTurns turns;
    bool submitted = false;                         // in the engine
    std::optional<generate::Completion> completion; // waits for its reward
  };
  struct Group {
    GroupWork head; // without samples
    EpisodePrompt prompt;
    std::string prompt_text;
    std::map<std::uint32_t, Sample> samples;
    bool asked = false, rendered = false;
  };
  struct Call {
    std::uint64_t group = 0;
    std::uint32_t sample = 0;
    bool begins = false; // asks for the prompt, for all samples of the group
    Clock::time_point deadline;
  };

  static std::uint64_t key_of(bool eval, std::uint32_t evaluation, std::uint64_t prompt);
  void call(std::uint64_t key, std::uint32_t sample, std::vector<data::Message> replies);
  void begin(std::uint64_t key, Group& group, EnvironmentReply& reply);
  void submit(std::uint64_t key, Group& group);
  [[nodiscard]] Status submit(std::uint64_t key, const Group& group, Sample& sample, const SamplePrefix& prefix);
  void finished(generate::Completion completion);
  void rewarded(std::uint64_t key, Group& group, std::uint32_t sample, const EnvironmentReply& reply);
  [[nodiscard]] bool goes_on(std::uint64_t key, const Group& group, Sample& sample, std::span<const data::Message> answer, double reward, bool error_turn);
  [[nodiscard]] bool tell_problems(std::uint64_t key, const Group& group, Sample& sample, const std::vector<std::string>& problems);
  void fail_samples(std::uint64_t key, std::vector<std::uint32_t> samples, const Error& error);
  void forget(std::uint64_t key, std::uint32_t sample);
  [[nodiscard]] SamplesDone& outbox(std::uint64_t key, const Group& group);
  void flush();
  void hand_back();
  [[nodiscard]] std::size_t held() const;

  const RolloutWorkerOptions& options_;
  Policy policy_;
  std::string worker_;
  std::uint32_t incarnation_;
  RolloutOutput output_;
  generate::Engine engine_;
  std::map<std::uint64_t, Group> groups_;     // by key_of
  std::map<std::uint64_t, Call> calls_;       // by number
  std::uint64_t next_call_ = 1, next_episode_ = 1;
  std::vector<EnvironmentCall> asking_;       // of the coming flush
  std::map<std::uint64_t, SamplesDone> done_; // of the coming flush, by group
  std::optional<Clock::time_point> drain_until_;
  bool drained_sent_ = false, paused_ = false;
  std::uint64_t tokens_ = 0;
  std::uint64_t drafts_seen_ = 0, drafts_accepted_seen_ = 0;  // reported so far
  Clock::time_point gauges_at_ = Clock::now();
};

} // namespace troupe::actors
