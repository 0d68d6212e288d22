/// @file
/// The head of a run: hosts the protocol cores (membership, run director, rollout director, checkpoint commit) and turns messages into their
/// events and their effects into messages. It decides nothing itself and computes nothing: every choice is a core's.
///
/// The cores share one actor on purpose: a step's checkpoint order must reach the rank before the next train step, and the ledger of a commit
/// is the one right after that step (docs/decisions/0001).
#pragma once

#include <caf/event_based_actor.hpp>
#include <caf/message_handler.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/messages/all.h"
#include "actors/runtime/frame.h"
#include "actors/supervisor/environment_router.h"
#include "actors/supervisor/observer.h"
#include "actors/supervisor/options.h"
#include "actors/supervisor/probe.h"
#include "protocol/checkpoint_commit.h"
#include "protocol/control_log.h"
#include "protocol/membership.h"
#include "protocol/mesh.h"
#include "protocol/rollout_director.h"
#include "protocol/run_director.h"

namespace troupe::actors {

class ControlLog;

/// Where a run begins: zero, or the newest commit. With `warm`, first an attempt to go on with the processes that the lost head left behind.
struct HeadStart {
  std::uint64_t term = 1;
  std::uint32_t epoch = 0;
  protocol::RunPosition position;
  protocol::LedgerSnapshot ledger;
  std::map<protocol::Role, protocol::control::WantedCount> wanted; ///< Scales of earlier terms.
  std::vector<PolicyVersion> commits;
  std::optional<protocol::control::State> warm; ///< The log, when its agent is alive.
  std::optional<protocol::RunPosition> warm_commit; ///< What the living run may be taken back to, with its ledger.
  protocol::LedgerSnapshot warm_ledger;
};

/// The node agent of this machine.
struct LocalAgent {
  std::function<Result<pid_t>()> start; ///< May be called from any thread.
  std::atomic<pid_t> pid{-1};           ///< The one that is running, or was last.
};

/// How a run ended.
struct HeadOutcome {
  protocol::RunExit exit = protocol::RunExit::kFailed;
  std::string reason;
  bool preempted = false; ///< The first to ask for a stop was SIGTERM.
};

class Head {
 public:
  Head(caf::event_based_actor* self, const SupervisorOptions& options, HeadStart start, WorkerFrame frame, Observer& observer, ControlLog& log,
       LocalAgent& agent, HeadOutcome& outcome);
  caf::behavior make_behavior();

 private:
  enum Timer : std::uint64_t { kMembershipTimer, kRunTimer, kRolloutTimer, kCommitTimer, kSecondTimer, kAdoptTimer, kAgentTimer, kMeshTimer };
  struct WorkerEntry {
    protocol::WorkerId id;
    caf::actor actor;
    std::int32_t pid = 0;
    PolicyVersion version;
    bool holds = false; // said so when it came
    std::uint64_t samples = 0; // that came from it
  };
  struct NodeEntry {
    caf::actor agent;
    bool local = false; // this machine: its agent is ours
    std::int32_t pid = 0;
    std::string host, address;
    bool leaving = false;
    std::vector<NodeListener> listeners;
  };
  struct KeptGroup { // what the ledger's groups stand for
    std::vector<std::int32_t> prompt_ids;
    std::string prompt_text;
    std::map<std::uint32_t, SampleResult> samples;
  };

  // head.cpp
  caf::message_handler worker_handlers();
  caf::message_handler rank_handlers();
  caf::message_handler rollout_handlers();
  caf::message_handler control_handlers();
  void begin();
  void tick(std::uint64_t timer);
  void every_second();
  void arm(Timer timer, TimePoint at);
  void end(protocol::RunExit exit, const std::string& reason);
  void note(const protocol::Note& note);
  [[nodiscard]] WorkerEntry* entry(const protocol::WorkerId& id);
  [[nodiscard]] WorkerEntry* only(protocol::Role role);
  template <class Effect>
  void perform_all(const std::vector<Effect>& effects, Timer timer);
  template <class Message>
  void send(const protocol::WorkerId& id, Message&& message);
  template <class Message>
  void send_rank(Message&& message); ///< rank/0: it answers, publishes and saves for all.
  template <class Message>
  void send_ranks(const Message& message); ///< Every rank, in one order for all.

  // head_adopt.cpp: the beginning, with new processes or with those that a lost head left behind; the agent of this machine
  void begin_cold(const std::string& why_not_warm);
  void begin_warm(PolicyVersion rank);
  void want_workers();
  void serve_with(std::uint32_t rollouts);
  void adopt_children(const NodeHello& hello, protocol::NodeId node);
  void adopt_worker(const Hello& hello, const protocol::WorkerId& id);
  void register_worker(const protocol::WorkerId& id);
  void start_agent();
  void agent_gone(pid_t pid, const std::string& how);
  void log_tally();
  void restore_tally(const std::string& json);

  // head_members.cpp
  void member_event(const protocol::membership::Event& event);
  void perform(const protocol::membership::StartWorker& e);
  void perform(const protocol::membership::DrainWorker& e);
  void perform(const protocol::membership::StopWorker& e);
  void perform(const protocol::membership::KillWorker& e);
  void perform(const protocol::membership::Suspected& e);
  void perform(const protocol::membership::Cleared& e);
  void perform(const protocol::membership::Gone& e);
  void tell_gone(const protocol::membership::Gone& e);
  void perform(const protocol::membership::ScaleRefused& e);
  void perform(const protocol::membership::GiveUp& e);
  void worker_joined(const Hello& hello, const caf::actor& worker);
  void heard(const std::string& name, std::uint32_t incarnation);

  // head_nodes.cpp: machines
  NodeAdmitted admit(const JoinRun& request);
  void node_joined(const NodeHello& hello, const caf::actor& agent);
  void node_lost(protocol::NodeId node, const std::string& how);
  [[nodiscard]] std::string drain_node(const std::string& name);
  void node_emptied(protocol::NodeId node);
  void link_down(const caf::actor_addr& who);
  void node_report(const NodeReport& report);
  [[nodiscard]] nlohmann::json nodes_json() const;
  [[nodiscard]] nlohmann::json listeners_json() const;

  // head_mesh.cpp: the ranks as one mesh
  caf::message_handler mesh_handlers();
  void mesh_event(const protocol::mesh::Event& event);
  void perform(const protocol::mesh::Build& e);
  void perform(const protocol::mesh::Whole& e);
  void perform(const protocol::mesh::Abort& e);
  void perform(const protocol::mesh::Lost& e);
  void send_answers(const std::vector<protocol::MeshStore::Answer>& answers);
  [[nodiscard]] std::string mesh_address(const protocol::WorkerId& rank) const;
  void rank_adopted(const Hello& hello, const protocol::WorkerId& id);

  // head_run.cpp: stages, steps, checkpoints
  void run_event(const protocol::run::Event& event);
  void perform(const protocol::run::BuildMesh& e);
  void perform(const protocol::run::StartStage& e);
  void perform(const protocol::run::TrainStep& e);
  void perform(const protocol::run::StartEvaluation& e);
  void perform(const protocol::run::Save& e);
  void perform(const protocol::run::StartExport& e);
  void perform(const protocol::run::DrainRollouts& e);
  void perform(const protocol::run::Rollback& e);
  void perform(const protocol::run::Progress& e);
  void perform(const protocol::run::Ended& e);
  void commit_event(const protocol::checkpoint::Event& event);
  void perform(const protocol::checkpoint::Prepare& e);
  void perform(const protocol::checkpoint::CopyState& e);
  void perform(const protocol::checkpoint::Write& e);
  void perform(const protocol::checkpoint::Commit& e);
  void perform(const protocol::checkpoint::Abort& e);
  void perform(const protocol::checkpoint::Saved& e);
  void perform(const protocol::checkpoint::NotSaved& e);
  void perform(const protocol::checkpoint::Remove& e);
  [[nodiscard]] std::string commit_folder(PolicyVersion version) const;
  void prepare_memory();
  void layout_is(const StateLayoutIs& message);
  void memory_ready(const MemoryReady& message);
  void step_done(const StepDone& message);
  void state_copied(const StateCopied& message);
  void committed(const Committed& message);
  void exported(const Exported& message);

  // head_rollout.cpp: groups, weights, results
  void rollout_event(const protocol::rollout::Event& event);
  void perform(const protocol::rollout::DispatchWork& e);
  void perform(const protocol::rollout::CancelSamples& e);
  void perform(const protocol::rollout::CancelAll& e);
  void perform(const protocol::rollout::DropResults& e);
  void perform(const protocol::rollout::RequestTrainStep& e);
  void perform(const protocol::rollout::StartPublish& e);
  void perform(const protocol::rollout::TellWorkerPull& e);
  void perform(const protocol::rollout::WorkerServing& e);
  void perform(const protocol::rollout::WorkerReleased& e);
  void perform(const protocol::rollout::WorkerUnfit& e);
  void perform(const protocol::rollout::EvaluationDone& e);
  void perform(const protocol::rollout::TrainingDone& e);
  void perform(const protocol::rollout::Drained& e);
  void perform(const protocol::rollout::Stalled& e);
  void perform(const protocol::rollout::Fail& e);
  void samples_done(const SamplesDone& message);
  void samples_failed(const SamplesFailed& message);
  void work_refused(const WorkRefused& message);
  void weights_published(const WeightsPublished& message);
  void lease_granted(const LeaseGranted& message);
  void weights_pulled(const WeightsPulled& message);
  void drained(const Drained& message);
  void gauges(const RolloutGauges& message);
  void probed(const ProbeScored& message);

  // head_report.cpp: what people and scripts see
  [[nodiscard]] const protocol::StageSpec& stage_at(std::uint32_t index) const;
  void report_step(const StepDone& message);
  void report_late_step(const StepDone& message);
  void compare_bits(std::vector<observe::Metric>& out);
  void report_samples(const std::vector<std::uint64_t>& prompts);
  [[nodiscard]] observe::Progress progress() const;
  [[nodiscard]] observe::Summary summary() const;
  [[nodiscard]] nlohmann::json status_json() const;
  [[nodiscard]] nlohmann::json actors_json() const;
  std::string answer(const std::string& line);
  nlohmann::json scale(const nlohmann::json& request);
  nlohmann::json set(const nlohmann::json& request);

  caf::event_based_actor* self_;
  const SupervisorOptions& options_;
  HeadStart start_;
  WorkerFrame frame_; // of this run; name, role and so on are filled in per worker
  Observer& observer_;
  ControlLog& log_;
  LocalAgent& agent_;
  HeadOutcome& outcome_;
  std::int64_t samples_per_step_;
  std::vector<double> lr_;                    // of the stages
  bool begun_ = false;                        // the run goes on; before: waiting for what a lost head left behind
  std::vector<protocol::WorkerId> early_;     // adopted workers that said hello before it
  std::vector<std::pair<Hello, caf::actor>> before_node_; // hellos that overtook that of their agent
  protocol::RestartPolicy agent_restarts_;

  protocol::Membership membership_;
  protocol::Mesh mesh_;
  protocol::MeshStore mesh_store_;
  protocol::RunDirector run_;
  protocol::RolloutDirector rollout_;
  protocol::CheckpointCommit commit_;
  EnvironmentRouter router_;
  Probe probe_;

  std::map<protocol::NodeId, NodeEntry> nodes_;
  std::set<protocol::NodeId> admitted_; // not yet heard of
  std::uint32_t last_node_ = 1;         // the head's own machine
  std::set<std::string> lost_;          // died, and are to be replaced
  std::map<std::string, WorkerEntry> workers_;     // by name; the incarnation that joined
  std::map<std::pair<std::string, std::uint32_t>, std::int32_t> pids_; // of started processes
  std::map<std::uint64_t, KeptGroup> kept_;        // results by prompt, until the director drops them
  std::map<SampleId, SamplePrefix> prefixes_;      // handed back, until they are dispatched again
  std::uint64_t lease_request_ = 0;

  bool rolled_back_ = false;
  std::optional<protocol::RunPosition> late_; // of a step that the lost head has not reported: its version, and the stage it belongs to
  std::uint64_t parameters_ = 0;
  std::map<std::uint32_t, PolicyVersion> adopted_ranks_; // what they hold, until all of them have said so
  std::map<std::string, std::string> rank_failures_;     // ranks' own last words
  std::map<PolicyVersion, std::pair<std::string, protocol::LedgerSnapshot>> commits_; // folder and ledger of each commit
  std::optional<protocol::run::Save> saving_;
  bool preparing_ = false;
  std::string layout_, prepared_layout_;
  std::uint64_t layout_bytes_ = 0;
  comm::RemoteRegion writer_region_;
  std::uint64_t save_ = 0;
  StateCopied copied_;
  protocol::LedgerSnapshot saved_ledger_;

  std::optional<protocol::rollout::RequestTrainStep> batch_; // of the running step
  std::map<std::uint32_t, std::uint32_t> evaluation_stage_;
  std::optional<double> eval_before_, eval_after_, eval_latest_;
  TimePoint step_began_{}, stage_began_{};
  std::uint64_t stage_begin_step_ = 0;
  observe::MetricBatch last_; // metrics that arrive between steps
  observe::Progress line_;
  std::map<std::string, RolloutGauges> gauges_;
  double drafts_ = 0, drafts_accepted_ = 0; // since the last step
  double generated_tokens_ = 0, probe_diff_ = 0, diff_max_ = 0, reward_sum_ = 0;
  std::uint64_t probe_tokens_ = 0, tokens_compared_ = 0, tokens_ = 0, completions_ = 0, rewards_ = 0, restarts_ = 0, age_max_ = 0;
  bool ended_ = false;
};

} // namespace troupe::actors
