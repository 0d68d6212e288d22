/// @file
/// A run from its first stage to its exit: builds the mesh, plays the stages in order, counts steps, asks for
/// evaluations and checkpoints, rolls back when a rank is lost, stops on request.
///
/// First stop: finish the running step, save, end as stopped. Second stop: end at once. A failure that cannot be
/// healed ends the run as failed, with the chain of reasons.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "protocol/restart_policy.h"
#include "protocol/types.h"

namespace troupe::protocol {

enum class StageKind : std::uint8_t { kPretrain = 1, kSft = 2, kRl = 3, kEval = 4, kExport = 5 };
[[nodiscard]] std::string_view to_string(StageKind kind);

/// One `[[stage]]` as far as the order of things goes.
struct StageSpec {
  StageKind kind = StageKind::kRl;
  std::string name;
  std::uint64_t steps = 0;             ///< Optimizer steps; 0 for eval and export.
  bool evaluate_before = false;
  std::uint64_t evaluate_every = 0;    ///< Every n steps of the stage; 0 = never.
  bool evaluate_after = false;
  std::uint64_t checkpoint_every = 0;  ///< Every n steps of the stage; 0 = only at the end of the stage.
};

/// Where a run is. Part of the commit record; a resume starts from it.
struct RunPosition {
  std::uint32_t stage = 0;       ///< Index into the stages; equal to their number when all are done.
  std::uint64_t stage_step = 0;  ///< Steps done in that stage.
  PolicyVersion version;         ///< Epoch and steps done in the run.
  friend bool operator==(const RunPosition&, const RunPosition&) = default;
};
[[nodiscard]] nlohmann::json to_json(const RunPosition& position);
/// Errors: kCorrupt when a field is missing or of the wrong type.
[[nodiscard]] Result<RunPosition> position_from_json(const nlohmann::json& json);

namespace run {

/// Begins at `position` (zero, or that of the commit to resume from). `epoch`: first epoch to use.
struct Start {
  RunPosition position;
  std::uint32_t epoch = 0;
};
/// Goes on at `position` with ranks that hold its state: the head was lost, not they. `committed`: the newest checkpoint.
struct Adopt {
  RunPosition position;
  std::optional<RunPosition> committed;
};
/// Every rank of the mesh holds the state asked for by BuildMesh.
struct MeshReady {
  PolicyVersion version;
};
/// A step of the present stage is done. In an rl stage the host feeds it to the rollout director too, and performs the
/// effects of the run director first: a Save must reach the rank before the next train step, with the rollout
/// director's `snapshot()` after the step.
struct StepDone {
  PolicyVersion version;
};
/// The rollout director's TrainingDone, the end of an export, or of the data of a pretrain/sft stage.
struct StageDone {};
struct EvaluationDone {
  std::uint32_t evaluation = 0;
};
/// The checkpoint coordinator's answer.
struct Saved {
  PolicyVersion version;
  RunPosition position;  ///< As it was given in Save.
};
struct NotSaved {
  PolicyVersion version;
  std::string reason;
};
/// The rollout director's Drained.
struct Drained {};
/// A rank or its machine died, or answered with an error. `cause`: what the rank itself reported, compared to recognise
/// poison (the same step failing twice for the same cause ends the run); empty when it was killed from outside.
struct RankLost {
  std::string who;
  std::string cause;
};
/// Something that no restart heals: membership's GiveUp, the rollout director's Fail, an export error.
struct Broken {
  std::string reason;
};
/// How often a stage saves and evaluates, from its next step on.
struct Retune {
  std::uint32_t stage = 0;
  std::uint64_t checkpoint_every = 0, evaluate_every = 0;
};
struct Stop {};
using Event = std::variant<Start, Adopt, MeshReady, StepDone, StageDone, EvaluationDone, Saved, NotSaved, Drained, RankLost,
                           Broken, Retune, Stop, Wake>;

/// Build the training mesh of `version.epoch` with the state of step `version.step`: of the newest commit, or, when
/// `from_commit` is absent, of the start (model import or fresh initialisation). `held`: the ranks have it already.
struct BuildMesh {
  PolicyVersion version;
  std::optional<PolicyVersion> from_commit;
  bool held = false;
};
/// Enter a stage (again, after a rollback or resume). For rl: send BeginTraining with `steps_done` to the rollout
/// director.
struct StartStage {
  std::uint32_t stage = 0;
  std::uint64_t steps_done = 0;
};
/// pretrain and sft: one optimizer step from `from`. Idempotent.
struct TrainStep {
  PolicyVersion from;
};
/// For the rollout director: Evaluate{evaluation, version, problems of that stage}.
struct StartEvaluation {
  std::uint32_t evaluation = 0;
  std::uint32_t stage = 0;
  PolicyVersion version;
};
/// For the checkpoint coordinator, with `position` in its record. The rank copies its state before any later step.
struct Save {
  PolicyVersion version;
  RunPosition position;
};
struct StartExport {
  std::uint32_t stage = 0;
};
/// Send Drain to the rollout director.
struct DrainRollouts {};
/// The mesh is lost: tell the rollout director (TrainerLost), the checkpoint coordinator (NewEpoch) and the ranks that
/// are left. When the mesh is ready again: RolledBack with the ledger of the commit (of the start when there is none).
struct Rollback {
  std::uint32_t epoch = 0;
  std::string reason;
};
/// For the control log.
struct Progress {
  RunPosition position;
};
/// Nothing follows.
struct Ended {
  RunExit exit = RunExit::kDone;
  std::string reason;
};
using Effect = std::variant<BuildMesh, StartStage, TrainStep, StartEvaluation, Save, StartExport, DrainRollouts,
                            Rollback, Progress, Ended, Note, ArmTimer>;

} // namespace run

class RunDirector {
 public:
  RunDirector(const RunOptions& options, std::vector<StageSpec> stages);
  std::vector<run::Effect> handle(const run::Event& event, TimePoint now);

  [[nodiscard]] const RunPosition& position() const { return position_; }
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] bool stopping() const { return stops_ > 0; }
  [[nodiscard]] std::uint32_t epoch() const { return epoch_; }
  [[nodiscard]] std::uint64_t steps_total() const;  ///< Optimizer steps of all stages.

 private:
  static constexpr std::uint32_t kSaveAttempts = 5;
  static constexpr Duration kSaveRetry = std::chrono::seconds(1);
  // What the run waits for. One thing at a time, except that rl stages train while evaluating and saving.
  enum class Phase { kNew, kMesh, kBefore, kRunning, kAfter, kStageSave, kDraining, kFinalSave, kEnded };

  void on(const run::Start& e);
  void on(const run::Adopt& e);
  void on(const run::MeshReady& e);
  void on(const run::Retune& e);
  void on(const run::StepDone& e);
  void on(const run::StageDone& e);
  void on(const run::EvaluationDone& e);
  void on(const run::Saved& e);
  void on(const run::NotSaved& e);
  void on(const run::Drained& e);
  void on(const run::RankLost& e);
  void on(const run::Broken& e);
  void on(const run::Stop& e);
  void on(const Wake& e);

  void build_mesh();
  void enter_stage();
  void begin_work();
  void next_train_step();
  void work_done();
  void stage_over();
  void evaluate();
  void save();
  void saved_or_not(const std::string& problem);
  void begin_final_save();
  void roll_back(const std::string& who, const std::string& cause, bool step_under_way = true);
  void enter(Phase phase, std::optional<Duration> deadline);
  void arm();
  void end(RunExit exit, const std::string& reason);
  [[nodiscard]] const StageSpec& stage() const { return stages_[position_.stage]; }
  [[nodiscard]] bool trains() const;        // the stage makes optimizer steps
  [[nodiscard]] bool trains_itself() const; // pretrain, sft: this core asks for the steps

  RunOptions options_;
  std::vector<StageSpec> stages_;
  RunPosition position_;
  RunPosition start_;                    // what a rollback without a commit returns to
  std::optional<RunPosition> committed_;  // newest
  std::uint32_t epoch_ = 0;
  Phase phase_ = Phase::kNew;
  std::uint32_t stops_ = 0;
  std::uint32_t next_evaluation_ = 1;
  std::set<std::uint32_t> evaluating_;   // asked for, not answered
  std::optional<RunPosition> saving_;    // asked for, not answered
  bool save_due_ = false;                // a save was refused or is waiting; the next step edge tries again
  std::uint32_t attempts_left_ = 0;      // for the save at the end of a stage or run
  std::optional<TimePoint> retry_save_;  // when that save is tried again
  bool work_over_ = false;               // the stage's own work is done; evaluations may still run
  bool stepping_ = false;                // a TrainStep is not answered
  bool ended_ = false;
  PoisonTracker poison_;
  std::deque<Failure> rollbacks_;
  std::optional<TimePoint> deadline_;
  TimePoint now_{};
  std::vector<run::Effect> effects_;
};

} // namespace troupe::protocol
