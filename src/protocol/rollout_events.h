/// @file
/// What goes into the rollout director and what comes out. Small values only: token ids, log-probs and rewards' details
/// stay with the host, which keeps them by sample id until `DropResults` or the batch has been sent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "protocol/ledger.h"
#include "protocol/options.h"
#include "protocol/types.h"

namespace troupe::protocol::rollout {

enum class WorkKind : std::uint8_t { kTrain = 1, kEvaluation = 2 };

/// The name of one sample on its way. Training: `id` is (prompt id, sample index). Evaluation: `id.prompt` is the
/// problem's index and `evaluation` tells evaluations apart.
struct SampleName {
  WorkKind kind = WorkKind::kTrain;
  std::uint32_t evaluation = 0;
  SampleId id;
  friend auto operator<=>(const SampleName&, const SampleName&) = default;
};
/// "12/3" or "eval 2 problem 7".
[[nodiscard]] std::string to_string(const SampleName& name);

/// One sample to compute. `resume`: the host sends the prefix (ids, log-probs, versions) it was handed back.
struct SampleTask {
  std::uint32_t sample = 0;
  std::uint32_t attempt = 1;
  bool resume = false;
};

/// What one worker gets in one message: samples of one prompt (training) or one greedy problem (evaluation).
struct Work {
  std::uint64_t number = 0;  ///< Of the dispatch; names it in a refusal. Rises by one.
  WorkKind kind = WorkKind::kTrain;
  std::uint32_t evaluation = 0;
  std::uint32_t epoch = 0;  ///< Results carry it back; other epochs are refused.
  std::uint64_t prompt = 0;
  std::vector<SampleTask> samples;
};

// ---- events: the trainer ------------------------------------------------------------------------------------------

/// The mesh is built and holds `version`: at the start of a run, or re-adopted in the same epoch. The first one is
/// published at once, so that workers can join.
struct TrainerReady {
  PolicyVersion version;
};
/// The mesh is gone. Rollouts go on with the version they hold until their buffer is full.
struct TrainerLost {
  std::string reason;
};
/// The mesh was rebuilt in a new epoch from a commit. Everything dispatched after it is booked cancelled{rollback}.
struct RolledBack {
  PolicyVersion version;  ///< New epoch, step of the commit.
  LedgerSnapshot ledger;  ///< Of the commit.
};
/// The optimizer step that `RequestTrainStep` asked for is done; the trainer holds `version`.
struct StepDone {
  PolicyVersion version;
};
/// The weight store serves `version`: the one asked for or, when the trainer had moved on (sft), a newer one.
struct Published {
  PolicyVersion version;
};
struct PublishFailed {
  PolicyVersion version;
  std::string reason;
};

// ---- events: workers ----------------------------------------------------------------------------------------------

/// A rollout worker registered. Not routable until it holds the served version. `holds`: a re-adopted worker's weights.
struct WorkerJoined {
  WorkerId worker;
  std::optional<PolicyVersion> holds;
};
/// The worker loaded `version` and its digest is right.
struct WorkerPulled {
  WorkerId worker;
  PolicyVersion version;
};
struct WorkerPullFailed {
  WorkerId worker;
  PolicyVersion version;
  std::string reason;
};
struct WorkerSuspected {
  WorkerId worker;
};
struct WorkerCleared {
  WorkerId worker;
};
/// It takes no new work; what it has is finished or handed back.
struct WorkerDraining {
  WorkerId worker;
};
/// Dead, or drained and gone. What it still owned is re-issued.
struct WorkerGone {
  WorkerId worker;
  std::string reason;
};
/// Heartbeat of the work: the samples the worker is computing or holds in its queue. Those not named get no credit.
struct WorkerProgress {
  WorkerId worker;
  std::vector<SampleName> running;
};
/// The worker did not take the work. kDraining: it is leaving. kResourceExhausted: full, try again later.
struct WorkRefused {
  WorkerId worker;
  Work work;
  ErrorCode code = ErrorCode::kDraining;
};

// ---- events: samples ----------------------------------------------------------------------------------------------

/// A complete result. `oldest`: oldest version among its tokens and KV entries.
struct SampleDone {
  WorkerId worker;
  std::uint32_t epoch = 0;
  SampleName name;
  std::uint32_t attempt = 1;
  PolicyVersion oldest;
  double reward = 0;
  bool trainable = true;
};
struct SampleFailed {
  WorkerId worker;
  std::uint32_t epoch = 0;
  SampleName name;
  std::uint32_t attempt = 1;
  std::string reason;
};
/// Handed back unfinished by a draining worker. With a prefix it continues elsewhere under the same randomness.
struct SampleReturned {
  WorkerId worker;
  std::uint32_t epoch = 0;
  SampleName name;
  std::uint32_t attempt = 1;
  PolicyVersion oldest;
  bool has_prefix = false;
};

// ---- events: control ----------------------------------------------------------------------------------------------

/// Starts the loop of an rl stage. `steps_done`: steps of this stage already in the trainer (resume). `version`: what
/// the trainer holds, when stages before (sft) have moved it since TrainerReady.
struct BeginTraining {
  RolloutPlan plan;
  std::uint64_t steps_done = 0;
  PolicyVersion version;
};
/// Runs `problems` greedy problems on exactly `version`; publishes it first when the workers hold an older one.
/// Later versions are published only when the evaluation is over, so it is never stale. Outside an rl stage the trainer
/// holds `version`; within one it is the version of the newest StepDone.
struct Evaluate {
  std::uint32_t evaluation = 0;  ///< A new number for each.
  PolicyVersion version;
  std::uint64_t problems = 0;
};
/// At most `count` workers get work; those beyond are spares that pull every version and wait.
struct ServeWith {
  std::uint32_t count = 0;
};
struct Pause {};   ///< No new dispatches and no new train steps until Resume; running work goes on.
struct Resume {};
struct Drain {};   ///< First stop: ends with `Drained` when no train step is running. Nothing is started any more.
/// Ends the loop at once: running work is cancelled, groups in flight are booked with `reason`.
struct End {
  CancelReason reason = CancelReason::kStopped;
};

using Event = std::variant<TrainerReady, TrainerLost, RolledBack, StepDone, Published, PublishFailed, WorkerJoined,
                           WorkerPulled, WorkerPullFailed, WorkerSuspected, WorkerCleared, WorkerDraining, WorkerGone,
                           WorkerProgress, WorkRefused, SampleDone, SampleFailed, SampleReturned, BeginTraining,
                           Evaluate, ServeWith, Pause, Resume, Drain, End, Wake>;

// ---- effects ------------------------------------------------------------------------------------------------------

struct DispatchWork {
  WorkerId worker;
  Work work;
};
/// The worker stops these samples and answers nothing.
struct CancelSamples {
  WorkerId worker;
  std::vector<SampleName> names;
};
/// The worker stops everything it has (rollback, end).
struct CancelAll {
  WorkerId worker;
};
/// The host frees the results it kept for this prompt.
struct DropResults {
  std::uint64_t prompt = 0;
};
/// Train on these complete groups, in this order (prompt id; samples by index), starting from `from`; the result is
/// `StepDone{from + 1}`. Idempotent: sent again when unanswered; a trainer that is past `from` answers at once, one
/// that is at it ignores the repetition. The rank copies `from` into a slot before its optimizer overwrites it, should
/// the StartPublish have been lost.
struct RequestTrainStep {
  PolicyVersion from;
  std::vector<std::uint64_t> prompts;
  std::uint64_t age_max = 0;  ///< Greatest policy age in the batch.
  double age_mean = 0;
  bool exhausted = false;  ///< The stream of prompts is used up and this batch is the (shorter) rest.
};
/// The rank copies its weights into a slot. Must be executed before any later RequestTrainStep (same queue).
/// Idempotent: with `version` in a slot it answers Published at once; a rank past `version` that never copied it
/// publishes what it holds and says so.
struct StartPublish {
  PolicyVersion version;
};
/// The worker pulls `version` (or a newer one) and answers WorkerPulled or WorkerPullFailed. Idempotent: ignored while
/// a pull of it is running, answered at once when it is held.
struct TellWorkerPull {
  WorkerId worker;
  PolicyVersion version;
};
/// A joining worker holds the served version for the first time and is routable: membership is told Serving.
struct WorkerServing {
  WorkerId worker;
};
/// A draining worker owns nothing any more and may exit.
struct WorkerReleased {
  WorkerId worker;
};
/// Alive but of no use (it did not pull within its deadline). Membership kills and replaces it.
struct WorkerUnfit {
  WorkerId worker;
  std::string reason;
};
struct EvaluationDone {
  std::uint32_t evaluation = 0;
  PolicyVersion version;
  std::uint64_t answered = 0;
  std::uint64_t failed = 0;  ///< Problems whose attempts are used up; they count as wrong.
  double reward_sum = 0;     ///< Summed in the order of the problems.
};
/// The stage has its steps, or its prompts are used up; the last version is served.
struct TrainingDone {
  bool exhausted = false;
};
/// Answer to Drain: no train step is running. Take `snapshot()` for the commit, then send End.
struct Drained {};
/// The watchdog: samples without news and who owns them. They were re-issued.
struct Stalled {
  struct Item {
    SampleName name;
    WorkerId owner;
    Duration silent{};
  };
  std::vector<Item> items;
};
/// The stage cannot go on. One sentence with ids and owners.
struct Fail {
  std::string reason;
};

using Effect = std::variant<DispatchWork, CancelSamples, CancelAll, DropResults, RequestTrainStep, StartPublish,
                            TellWorkerPull, WorkerServing, WorkerReleased, WorkerUnfit, EvaluationDone, TrainingDone,
                            Drained, Stalled, Fail, Note, ArmTimer>;

} // namespace troupe::protocol::rollout
