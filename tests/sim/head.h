/// @file
/// The simulated head: hosts the protocol cores as the actors do, performs their effects, and checks the invariants
/// after every event.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/checkpoint_commit.h"
#include "protocol/membership.h"
#include "protocol/rollout_director.h"
#include "protocol/run_director.h"
#include "sim/processes.h"
#include "sim/world.h"

namespace troupe::sim {

/// One committed checkpoint.
struct Commit {
  protocol::RunPosition position;
  protocol::LedgerSnapshot ledger;
  Trained trained;
};

/// What outlives a head: committed checkpoints, the epochs used, and the wanted workers.
struct Disk {
  std::map<PolicyVersion, Commit> commits;
  std::optional<PolicyVersion> newest;
  std::uint32_t next_epoch = 0;
};

/// What a seed decides about a run.
struct Scenario {
  protocol::RolloutPlan plan;
  std::vector<protocol::StageSpec> stages;
  std::uint32_t workers = 2;
  std::uint64_t problems = 3;
  double sample_failures = 0;
};

class Head {
 public:
  Head(World& world, Disk& disk, const Scenario& scenario);

  void start();
  void crash_worker();    ///< kill -9 of a random rollout worker.
  void freeze_worker();   ///< SIGSTOP for a while, or for ever.
  void crash_rank();
  void crash_writer();
  void scale(std::uint32_t count);
  void stop();
  void unfreeze_all();

  [[nodiscard]] const std::optional<protocol::run::Ended>& ended() const { return ended_; }
  [[nodiscard]] const Trained& trained() const { return last_trained_; }
  [[nodiscard]] const protocol::RolloutDirector& rollouts() const { return rollouts_; }
  [[nodiscard]] std::string progress() const;
  [[nodiscard]] std::uint32_t epoch() const { return run_.epoch(); }
  /// No process of this head runs after it (end, or crash of the head).
  void kill_everything();

 private:
  template <class Core, class Event>
  void feed(Core& core, const Event& event);
  void step_done(const protocol::rollout::StepDone& done);

  // effects, one overload each; what needs nothing is taken by the template
  template <class E>
  void perform(const E&) {}
  void perform(const protocol::rollout::DispatchWork& e);
  void perform(const protocol::rollout::CancelSamples& e);
  void perform(const protocol::rollout::CancelAll& e);
  void perform(const protocol::rollout::RequestTrainStep& e);
  void perform(const protocol::rollout::StartPublish& e);
  void perform(const protocol::rollout::TellWorkerPull& e);
  void perform(const protocol::rollout::WorkerServing& e);
  void perform(const protocol::rollout::WorkerReleased& e);
  void perform(const protocol::rollout::WorkerUnfit& e);
  void perform(const protocol::rollout::EvaluationDone& e);
  void perform(const protocol::rollout::TrainingDone& e);
  void perform(const protocol::rollout::Drained& e);
  void perform(const protocol::rollout::Fail& e);
  void perform(const protocol::membership::StartWorker& e);
  void perform(const protocol::membership::DrainWorker& e);
  void perform(const protocol::membership::StopWorker& e);
  void perform(const protocol::membership::KillWorker& e);
  void perform(const protocol::membership::Suspected& e);
  void perform(const protocol::membership::Cleared& e);
  void perform(const protocol::membership::Gone& e);
  void perform(const protocol::membership::GiveUp& e);
  void perform(const protocol::checkpoint::Prepare& e);
  void perform(const protocol::checkpoint::CopyState& e);
  void perform(const protocol::checkpoint::Write& e);
  void perform(const protocol::checkpoint::Commit& e);
  void perform(const protocol::checkpoint::Saved& e);
  void perform(const protocol::checkpoint::NotSaved& e);
  void perform(const protocol::run::BuildMesh& e);
  void perform(const protocol::run::StartStage& e);
  void perform(const protocol::run::TrainStep& e);
  void perform(const protocol::run::StartEvaluation& e);
  void perform(const protocol::run::Save& e);
  void perform(const protocol::run::StartExport& e);
  void perform(const protocol::run::DrainRollouts& e);
  void perform(const protocol::run::Rollback& e);
  void perform(const protocol::run::Ended& e);

  void arm(protocol::RolloutDirector& core, TimePoint at);
  template <class Core>
  void arm_core(Core& core, TimePoint at);

  HeadPort port();
  void register_worker(protocol::WorkerId id);
  void process_ended(protocol::WorkerId id, const std::string& reason);
  void load_rank();
  void check();
  void check_batch(const protocol::rollout::RequestTrainStep& e);
  std::shared_ptr<RolloutProcess> rollout(protocol::WorkerId id) const;
  std::shared_ptr<RolloutProcess> random_rollout();

  World& world_;
  Disk& disk_;
  Scenario scenario_;
  protocol::RunDirector run_;
  protocol::RolloutDirector rollouts_;
  protocol::Membership membership_;
  protocol::CheckpointCommit checkpoints_;

  std::shared_ptr<RankProcess> rank_;
  std::map<protocol::WorkerId, std::shared_ptr<RolloutProcess>> rollout_processes_;
  std::set<protocol::WorkerId> writers_;              // those alive
  std::vector<std::shared_ptr<void>> ever_started_;   // actions under way still refer to the dead
  std::map<protocol::WorkerId, TimePoint> draining_since_;
  std::optional<protocol::run::BuildMesh> mesh_;
  bool first_mesh_ = true;
  std::map<std::uint64_t, Trained> writer_memory_;
  std::optional<Commit> saving_;
  std::map<protocol::rollout::SampleName, PolicyVersion> prefixes_;
  std::map<protocol::rollout::SampleName, PolicyVersion> oldest_;  // as the worker that was accepted knows it
  std::optional<PolicyVersion> last_published_;
  std::optional<protocol::run::Ended> ended_;
  Trained last_trained_;
  std::uint64_t generation_ = 0;
  bool alive_ = true;
};

} // namespace troupe::sim
