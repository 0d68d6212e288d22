/// @file
/// The simulated head: hosts the protocol cores as the actors do, performs their effects, and checks the invariants
/// after every event. Begins cold from the newest checkpoint, or warm with the processes that a lost head left behind.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/checkpoint_commit.h"
#include "protocol/membership.h"
#include "protocol/mesh.h"
#include "protocol/rollout_director.h"
#include "protocol/run_director.h"
#include "sim/processes.h"
#include "sim/ranks.h"
#include "sim/world.h"

namespace troupe::sim {

/// What a seed decides about a run.
struct Scenario {
  protocol::RolloutPlan plan;
  std::vector<protocol::StageSpec> stages;
  std::uint32_t workers = 2;
  std::uint32_t spares = 0;
  std::uint32_t ranks = 1;
  std::uint64_t problems = 3;
  double sample_failures = 0;
};

/// The machine: its disk, and its node agent with everybody who ever ran there.
struct Machine {
  World& world;
  Disk disk;
  std::shared_ptr<Agent> agent;
  std::vector<std::shared_ptr<void>> ever_started;  ///< Actions under way still refer to the dead.
  Rings rings;
  std::uint64_t meshes = 0;  ///< The newest one.

  /// The process is over; the agent sees it, and says so to the head it knows.
  void end_process(WorkerId id, const std::string& reason);
  /// Everybody dies.
  void end_agent();
};

/// How long a connection may be silent before it counts as lost.
inline constexpr Duration kLinkPatience = std::chrono::seconds(3);

class Head final : public HeadEar {
 public:
  Head(Machine& machine, const Scenario& scenario);
  ~Head() override;

  [[nodiscard]] bool start();  ///< False when its term cannot be written: it refuses to start.
  bool scale(std::uint32_t count);  ///< False when nobody is there to be asked.
  void stop();
  void freeze(Duration time);
  void jump_clock(Duration by);
  /// The agent's process is gone, or its connection.
  void agent_gone(const std::shared_ptr<Agent>& agent, const std::string& how);
  void agent_hello(const std::shared_ptr<Agent>& agent);
  void die();  ///< kill -9.

  void hear(WorkerId from, const protocol::rollout::Event& event) override;
  void hear(WorkerId from, const protocol::mesh::Event& event) override;
  void hear(WorkerId from, const protocol::checkpoint::Event& event) override;
  void hear(WorkerId from, const protocol::membership::Event& event) override;
  void hello(WorkerId from, std::optional<PolicyVersion> holds, bool adopted) override;
  void store_set(std::uint64_t mesh, const std::string& key, const std::string& value) override;
  void store_get(WorkerId from, std::uint64_t mesh, std::uint64_t request, const std::string& key) override;

  [[nodiscard]] const std::optional<protocol::run::Ended>& ended() const { return ended_; }
  [[nodiscard]] bool alive() const { return alive_; }
  [[nodiscard]] bool warm() const { return warm_begin_; }
  [[nodiscard]] bool step_ahead() const { return step_ahead_; }
  [[nodiscard]] const Trained& trained() const { return last_trained_; }
  [[nodiscard]] const protocol::RolloutDirector& rollouts() const { return rollouts_; }
  [[nodiscard]] const std::shared_ptr<Line>& line() const { return line_; }
  /// What reached it while it was frozen and will not be done: it refers to the head itself.
  void drop_inbox() { inbox_.clear(); }
  [[nodiscard]] std::shared_ptr<RankProcess> rank() const;  ///< rank/0.
  [[nodiscard]] std::string progress() const;
  [[nodiscard]] std::uint32_t epoch() const { return run_.epoch(); }

 private:
  void receive(std::function<void()> action);  // now, on waking, or never
  /// False when the disk is full. What must not take effect unless it is remembered looks at it.
  bool log_record(const protocol::control::Record& record);
  template <class Core, class Event>
  void feed(Core& core, const Event& event);
  template <class Core, class Effects>
  void perform_all(Core& core, const Effects& effects);
  void step_done(const protocol::rollout::StepDone& done);

  void rank_adopted(WorkerId id, std::optional<PolicyVersion> holds);
  void send_answers(const std::vector<protocol::MeshStore::Answer>& answers);

  void begin_cold(const std::string& why_not_warm);
  void begin_warm(PolicyVersion rank);
  void want_workers();
  void serve_with(std::uint32_t rollouts);
  void start_agent();
  void start_process(Agent& agent, WorkerId id);
  void register_worker(WorkerId id);

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
  void perform(const protocol::checkpoint::Saved& e);
  void perform(const protocol::checkpoint::NotSaved& e);
  void perform(const protocol::mesh::Build& e);
  void perform(const protocol::mesh::Whole& e);
  void perform(const protocol::mesh::Abort& e);
  void perform(const protocol::mesh::Lost& e);
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

  /// An order over a lossy link to a process that is connected to this head.
  template <class P>
  void order(const std::shared_ptr<P>& process, std::function<void(P&)> action);
  /// The same over a link that keeps everything and its order.
  template <class P>
  void order_reliably(std::uint64_t channel, const std::shared_ptr<P>& process, std::function<void(P&)> action);
  template <class P>
  std::function<void()> arrival(const std::shared_ptr<P>& process, std::function<void(P&)> action);
  void check();
  void check_batch(const protocol::rollout::RequestTrainStep& e);
  template <class P>
  [[nodiscard]] std::shared_ptr<P> process(WorkerId id) const;
  [[nodiscard]] std::shared_ptr<WriterProcess> writer() const;
  [[nodiscard]] std::vector<std::shared_ptr<RankProcess>> ranks() const;
  [[nodiscard]] TimePoint now() const { return machine_.world.now() + skew_; }

  Machine& machine_;
  World& world_;
  Disk& disk_;
  Scenario scenario_;
  std::optional<protocol::control::State> warm_;  // what the lost head left behind, while its agent lives
  protocol::RunPosition start_position_;
  protocol::LedgerSnapshot start_ledger_;
  std::uint32_t start_epoch_ = 0;
  std::optional<protocol::RunPosition> warm_commit_;  // what the living run may be taken back to
  std::map<protocol::Role, protocol::control::WantedCount> start_wanted_;
  std::uint32_t serve_with_ = 0;
  protocol::RunDirector run_;
  protocol::RolloutDirector rollouts_;
  protocol::Membership membership_;
  protocol::CheckpointCommit checkpoints_;
  protocol::Mesh mesh_;
  protocol::MeshStore mesh_store_;

  std::shared_ptr<Line> line_ = std::make_shared<Line>();
  bool begun_ = false, warm_begin_ = false, step_ahead_ = false;
  bool node_there_ = false;
  std::shared_ptr<Agent> counted_on_;  ///< The agent that it started last, or that the log names, until it is known to be gone.
  std::vector<std::pair<WorkerId, std::optional<PolicyVersion>>> early_, before_node_;
  std::map<WorkerId, std::optional<PolicyVersion>> joined_;  // and what they held when they came
  std::map<WorkerId, TimePoint> draining_since_, killing_since_;
  std::map<std::uint32_t, PolicyVersion> adopted_ranks_;
  bool rolled_back_ = false;
  std::optional<protocol::rollout::RequestTrainStep> batch_;
  std::optional<Commit> saving_;
  TimePoint saving_since_{};
  std::map<protocol::rollout::SampleName, PolicyVersion> prefixes_;
  std::map<protocol::rollout::SampleName, PolicyVersion> oldest_;  // as the worker that was accepted knows it
  std::optional<PolicyVersion> last_published_;
  std::optional<protocol::run::Ended> ended_;
  Trained last_trained_;
  Duration skew_{};
  bool alive_ = true, frozen_ = false;
  std::uint64_t freezes_ = 0;
  std::deque<std::function<void()>> inbox_;
};

template <class P>
std::shared_ptr<P> Head::process(WorkerId id) const {
  const auto it = machine_.agent->children.find(id);
  return it == machine_.agent->children.end() ? nullptr : std::dynamic_pointer_cast<P>(it->second);
}

template <class P>
std::function<void()> Head::arrival(const std::shared_ptr<P>& process, std::function<void(P&)> action) {
  return [line = line_, process, action = std::move(action)] {
    process->deliver([line, process, action] {
      if (process->line() == line) action(*process);
    });
  };
}

template <class P>
void Head::order(const std::shared_ptr<P>& process, std::function<void(P&)> action) {
  if (process) world_.send(arrival<P>(process, std::move(action)));
}

template <class P>
void Head::order_reliably(std::uint64_t channel, const std::shared_ptr<P>& process, std::function<void(P&)> action) {
  if (process) world_.send_reliably(channel, arrival<P>(process, std::move(action)));
}

template <class Core, class Event>
void Head::feed(Core& core, const Event& event) {
  if (!alive_ || ended_) return;
  perform_all(core, core.handle(event, now()));
  check();
}

template <class Core, class Effects>
void Head::perform_all(Core& core, const Effects& effects) {
  for (const auto& effect : effects) {
    if (const auto* timer = std::get_if<protocol::ArmTimer>(&effect)) {
      world_.after(timer->at - now(), [this, &core] { receive([this, &core] { feed(core, protocol::Wake{}); }); });
    } else if (const auto* text = std::get_if<protocol::Note>(&effect)) {
      world_.log("note: " + text->text);
    } else {
      std::visit([this](const auto& e) { perform(e); }, effect);
    }
  }
}

} // namespace troupe::sim
