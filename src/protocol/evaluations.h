/// @file
/// Evaluation work: greedy problems on one fixed policy version, with counters of their own. Part of the rollout
/// director.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "protocol/rollout_events.h"

namespace troupe::protocol {

/// One problem on its way.
struct EvaluationProblem {
  SampleState state = SampleState::kWaiting;
  std::uint32_t attempt = 1;
  WorkerId owner;
  TimePoint last_news{};
  bool failed = false;  ///< Attempts used up; done with reward 0.
  double reward = 0;
};

/// The evaluation that is running.
struct Evaluation {
  rollout::Evaluate request;
  std::optional<PolicyVersion> version;  ///< What the workers held when it began.
  std::vector<EvaluationProblem> problems;
  std::set<std::uint64_t> waiting;  ///< Indices in state kWaiting.
  std::uint64_t done = 0;
};

/// A queue of evaluations, one active at a time.
class Evaluations {
 public:
  static constexpr std::size_t kQueueMax = 8;
  static constexpr std::uint64_t kProblemsMax = 1u << 20;
  static constexpr std::uint32_t kAttempts = 3;

  /// Errors: kResourceExhausted when the queue is full, kInvalidArgument for too many problems.
  Status add(const rollout::Evaluate& request);
  [[nodiscard]] Evaluation* active() { return queue_.empty() ? nullptr : &queue_.front(); }
  [[nodiscard]] const Evaluation* active() const { return queue_.empty() ? nullptr : &queue_.front(); }

  std::uint32_t assign(std::uint64_t problem, WorkerId owner, TimePoint now);
  /// False for a duplicate or a result of another evaluation. `obsolete`: another worker still computes it.
  bool complete(const rollout::SampleName& name, WorkerId from, double reward, std::optional<WorkerId>& obsolete);
  /// False when that attempt of that owner no longer counts.
  bool fail(const rollout::SampleName& name, std::uint32_t attempt, WorkerId owner);
  bool give_back(const rollout::SampleName& name, std::uint32_t attempt, WorkerId owner);
  void news(const rollout::SampleName& name, WorkerId from, TimePoint now);
  [[nodiscard]] EvaluationProblem* find(const rollout::SampleName& name);

  /// The result of the active evaluation when all its problems are done; it leaves the queue.
  std::optional<rollout::EvaluationDone> take_finished();
  /// Drops everything (rollback, end). Returns the numbers of the evaluations dropped.
  std::vector<std::uint32_t> clear();

  std::uint64_t dispatched = 0, delivered = 0, cancelled = 0;
  [[nodiscard]] std::uint64_t in_flight() const { return dispatched - delivered - cancelled; }

 private:
  void finish(Evaluation& evaluation, EvaluationProblem& problem);
  std::deque<Evaluation> queue_;
};

} // namespace troupe::protocol
