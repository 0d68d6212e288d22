#include "sim/head.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::sim {

using namespace protocol;
using namespace std::chrono_literals;

namespace {

constexpr NodeId kNode{1};

RolloutOptions rollout_options() {
  RolloutOptions o;
  o.pull_deadline = 8s;
  o.command_resend = 1s;
  o.sample_silence = 5s;
  o.worker_samples_max = 16;
  return o;
}

MembershipOptions membership_options() {
  MembershipOptions o;
  o.drain_deadline = 2s;
  o.drain_grace = 1s;
  o.join_deadline = 5s;
  o.restart.restarts_max = 1000;  // the scenarios kill more than a healthy run would bear
  o.restart.backoff_max = 1s;
  return o;
}

CheckpointCommitOptions checkpoint_options() {
  CheckpointCommitOptions o;
  o.prepare_deadline = 3s;
  o.copy_deadline = 3s;
  o.write_deadline = 3s;
  o.commit_deadline = 3s;
  return o;
}

RunOptions run_options() {
  RunOptions o;
  o.mesh_deadline = 20s;
  o.step_deadline = 20s;
  o.stop_deadline = 60s;
  o.rollbacks_max = 1000;
  return o;
}

LedgerSnapshot newest_ledger(const Disk& disk) {
  return disk.newest ? disk.commits.at(*disk.newest).ledger : LedgerSnapshot{};
}

} // namespace

Head::Head(World& world, Disk& disk, const Scenario& scenario)
    : world_(world),
      disk_(disk),
      scenario_(scenario),
      run_(run_options(), scenario.stages),
      rollouts_(rollout_options(), newest_ledger(disk)),
      membership_(membership_options()),
      checkpoints_(checkpoint_options(), disk.next_epoch, 1) {}

void Head::start() {
  feed(membership_, membership::Event{membership::NodeJoined{kNode}});
  feed(membership_, membership::Event{membership::SetWanted{Role::kRank, 1, 1}});
  feed(membership_, membership::Event{membership::SetWanted{Role::kCheckpointWriter, 1, 1}});
  scale(scenario_.workers);
  run::Start start;
  if (disk_.newest) start.position = disk_.commits.at(*disk_.newest).position;
  start.epoch = disk_.next_epoch++;
  feed(run_, run::Event{start});
}

template <class Core, class Event>
void Head::feed(Core& core, const Event& event) {
  if (!alive_ || ended_) return;
  for (const auto& effect : core.handle(event, world_.now())) {
    if (const auto* timer = std::get_if<ArmTimer>(&effect)) {
      world_.after(std::max(Duration{0}, timer->at - world_.now()), [this, &core] { feed(core, Event{Wake{}}); });
    } else if (const auto* text = std::get_if<Note>(&effect)) {
      world_.log("note: " + text->text);
    } else {
      std::visit([this](const auto& e) { perform(e); }, effect);
    }
  }
  check();
}

void Head::step_done(const rollout::StepDone& done) {
  if (!alive_ || ended_) return;
  const auto then = rollouts_.handle(done, world_.now());
  feed(run_, run::Event{run::StepDone{done.version}});  // its Save reaches the rank before the next step
  for (const auto& effect : then) {
    if (const auto* timer = std::get_if<ArmTimer>(&effect)) {
      world_.after(timer->at - world_.now(), [this] { feed(rollouts_, rollout::Event{Wake{}}); });
    } else {
      std::visit([this](const auto& e) { perform(e); }, effect);
    }
  }
  check();
}

HeadPort Head::port() {
  HeadPort port;
  port.rollout = [this](WorkerId from, rollout::Event event) {
    world_.send([this, from, event = std::move(event)] {
      if (const auto* done = std::get_if<rollout::StepDone>(&event)) return step_done(*done);
      if (const auto* returned = std::get_if<rollout::SampleReturned>(&event))
        prefixes_[returned->name] = returned->oldest;
      if (const auto* done = std::get_if<rollout::SampleDone>(&event)) {
        const LedgerSample* sample = rollouts_.ledger().sample(done->name.id);
        const bool first = done->name.kind == rollout::WorkKind::kTrain && done->epoch == run_.epoch() &&
                           sample != nullptr && sample->state != SampleState::kDone;
        if (first) oldest_[done->name] = done->oldest;
        if (done->name.kind == rollout::WorkKind::kEvaluation && rollouts_.served()) oldest_[done->name] = done->oldest;
      }
      feed(rollouts_, event);
    });
  };
  port.run = [this](WorkerId from, run::Event event) {
    world_.send_reliably(from.index + 100, [this, from, event = std::move(event)] {
      if (!rank_ || rank_->id != from) return;
      if (const auto* ready = std::get_if<run::MeshReady>(&event)) {
        if (!mesh_ || ready->version != mesh_->version) return;
        if (std::exchange(first_mesh_, false)) {
          feed(rollouts_, rollout::Event{rollout::TrainerReady{ready->version}});
        } else {
          const LedgerSnapshot ledger =
              mesh_->from_commit ? disk_.commits.at(*mesh_->from_commit).ledger : LedgerSnapshot{};
          oldest_.clear();
          prefixes_.clear();
          feed(rollouts_, rollout::Event{rollout::RolledBack{ready->version, ledger}});
        }
        mesh_.reset();
      }
      feed(run_, event);
    });
  };
  port.checkpoint = [this](WorkerId, checkpoint::Event event) {
    world_.send([this, event = std::move(event)] { feed(checkpoints_, event); });
  };
  port.membership = [this](WorkerId, membership::Event event) {
    world_.send([this, event = std::move(event)] { feed(membership_, event); });
  };
  return port;
}

// ---- effects of the rollout director

void Head::perform(const rollout::DispatchWork& e) {
  const auto worker = rollout(e.worker);
  if (worker && worker->alive)
    require(worker->holds() == rollouts_.served(), "work goes only to workers that hold the served version");
  require(rollouts_.workers().find(e.worker)->state == WorkerState::kServing, "work goes only to serving workers");
  world_.send([worker, work = e.work, prefixes = prefixes_] {
    if (worker) worker->dispatch(work, prefixes);
  });
}

void Head::perform(const rollout::CancelSamples& e) {
  world_.send([worker = rollout(e.worker), names = e.names] {
    if (worker) worker->cancel(names);
  });
}

void Head::perform(const rollout::CancelAll& e) {
  world_.send([worker = rollout(e.worker)] {
    if (worker) worker->cancel_all();
  });
}

void Head::perform(const rollout::RequestTrainStep& e) {
  check_batch(e);
  world_.send([this, e] {
    if (rank_ && rank_->alive) rank_->train_rl(e);
  });
}

void Head::perform(const rollout::StartPublish& e) {
  require(!last_published_ || *last_published_ <= e.version, "versions are published in order");
  last_published_ = e.version;
  world_.send([this, e] {
    if (rank_ && rank_->alive) rank_->start_publish(e.version);
  });
}

void Head::perform(const rollout::TellWorkerPull& e) {
  world_.send([worker = rollout(e.worker), e] {
    if (worker) worker->pull(e.version);
  });
}

void Head::perform(const rollout::WorkerServing& e) {
  feed(membership_, membership::Event{membership::Serving{e.worker}});
}

void Head::perform(const rollout::WorkerReleased& e) {
  feed(membership_, membership::Event{membership::Empty{e.worker}});
}

void Head::perform(const rollout::WorkerUnfit& e) {
  feed(membership_, membership::Event{membership::Unfit{e.worker, e.reason}});
}

void Head::perform(const rollout::EvaluationDone& e) {
  for (std::uint64_t i = 0; i < scenario_.problems; ++i) {
    const auto answer = oldest_.find({rollout::WorkKind::kEvaluation, e.evaluation, {i, 0}});
    if (answer != oldest_.end()) require(answer->second == e.version, "an evaluation is answered by one version");
  }
  require(e.answered + e.failed == scenario_.problems, "an evaluation answers every problem");
  feed(run_, run::Event{run::EvaluationDone{e.evaluation}});
}

void Head::perform(const rollout::TrainingDone&) { feed(run_, run::Event{run::StageDone{}}); }
void Head::perform(const rollout::Drained&) { feed(run_, run::Event{run::Drained{}}); }
void Head::perform(const rollout::Fail& e) { feed(run_, run::Event{run::Broken{e.reason}}); }

// ---- effects of membership: the agent

void Head::perform(const membership::StartWorker& e) {
  world_.log("start " + to_string(e.worker));
  const auto alive = [&](const auto& entry) { return entry.first.index == e.worker.index && entry.second->alive; };
  if (e.worker.role == Role::kRollout) {
    require(std::none_of(rollout_processes_.begin(), rollout_processes_.end(), alive),
            "one process of a name at a time");
    const auto process = std::make_shared<RolloutProcess>(world_, port(), e.worker);
    process->failures = scenario_.sample_failures;
    rollout_processes_[e.worker] = process;
    ever_started_.push_back(process);
    process->start([this] { return rank_ && rank_->alive ? rank_ : nullptr; });
  } else if (e.worker.role == Role::kRank) {
    require(!rank_ || !rank_->alive, "one rank at a time");
    rank_ = std::make_shared<RankProcess>(world_, port(), e.worker);
    rank_->writer_memory = &writer_memory_;
    ever_started_.push_back(rank_);
  } else {
    writers_.insert(e.worker);
  }
  world_.send_reliably(1, [this, id = e.worker] { register_worker(id); });
}

void Head::register_worker(WorkerId id) {
  if (!alive_ || ended_ || !membership_.members().contains(id)) return;
  feed(membership_, membership::Event{membership::Registered{id}});
  if (id.role == Role::kRollout) {
    feed(rollouts_, rollout::Event{rollout::WorkerJoined{id, {}}});
    return;
  }
  feed(membership_, membership::Event{membership::Serving{id}});
  if (id.role == Role::kRank) load_rank();
  if (id.role == Role::kCheckpointWriter) feed(checkpoints_, checkpoint::Event{checkpoint::WriterJoined{}});
  const auto beat = std::make_shared<std::function<void()>>();
  *beat = [this, id, weak = std::weak_ptr(beat)] {
    const bool there = id.role == Role::kRank ? rank_ && rank_->id == id && rank_->alive : writers_.contains(id);
    if (!there || !alive_ || ended_) return;
    feed(membership_, membership::Event{membership::Heard{id}});
    if (const auto next = weak.lock()) world_.after(200ms, [next] { (*next)(); });
  };
  (*beat)();
}

void Head::perform(const membership::DrainWorker& e) {
  if (e.worker.role != Role::kRollout) return;
  draining_since_[e.worker] = world_.now();
  feed(rollouts_, rollout::Event{rollout::WorkerDraining{e.worker}});
  world_.send([worker = rollout(e.worker), e] {
    if (worker) worker->drain(e.deadline);
  });
}

void Head::perform(const membership::StopWorker& e) {
  world_.send([this, e] { process_ended(e.worker, "exit code 0"); });
}

void Head::perform(const membership::KillWorker& e) {
  world_.log("kill " + to_string(e.worker) + ": " + e.reason);
  world_.send([this, e] { process_ended(e.worker, "killed by signal 9"); });
}

void Head::process_ended(WorkerId id, const std::string& reason) {
  if (const auto worker = rollout(id)) worker->alive = false;
  if (rank_ && rank_->id == id) rank_->alive = false;
  writers_.erase(id);
  world_.log(to_string(id) + " ends: " + reason);
  world_.send_reliably(1, [this, id, reason] { feed(membership_, membership::Event{membership::Exited{id, reason}}); });
}

void Head::perform(const membership::Suspected& e) {
  if (e.worker.role == Role::kRollout) feed(rollouts_, rollout::Event{rollout::WorkerSuspected{e.worker}});
}

void Head::perform(const membership::Cleared& e) {
  if (e.worker.role == Role::kRollout) feed(rollouts_, rollout::Event{rollout::WorkerCleared{e.worker}});
}

void Head::perform(const membership::Gone& e) {
  draining_since_.erase(e.worker);
  if (e.worker.role == Role::kRollout) {
    rollout_processes_.erase(e.worker);
    if (rank_ && rank_->alive) rank_->store(publication::ReaderGone{e.worker});
    feed(rollouts_, rollout::Event{rollout::WorkerGone{e.worker, e.reason}});
  } else if (e.worker.role == Role::kRank) {
    feed(run_, run::Event{run::RankLost{to_string(e.worker), ""}});
  } else {
    feed(checkpoints_, checkpoint::Event{checkpoint::WriterLost{e.reason}});
  }
}

void Head::perform(const membership::GiveUp& e) { feed(run_, run::Event{run::Broken{e.reason}}); }

// ---- effects of the checkpoint coordinator: the writer

void Head::perform(const checkpoint::Prepare& e) {
  if (writers_.empty()) return;
  world_.send([this, e] {
    if (!writers_.empty())
      world_.send([this, e] { feed(checkpoints_, checkpoint::Event{checkpoint::Prepared{e.save}}); });
  });
}

void Head::perform(const checkpoint::CopyState& e) {
  world_.send([this, e] {
    if (rank_ && rank_->alive) rank_->copy_state(e.save);
  });
}

void Head::perform(const checkpoint::Write& e) {
  world_.after(world_.millis(20, 400), [this, e] {
    if (!writers_.empty()) feed(checkpoints_, checkpoint::Event{checkpoint::Written{e.save}});
  });
}

void Head::perform(const checkpoint::Commit& e) {
  world_.send([this, e] {
    if (writers_.empty() || !saving_ || saving_->position.version != e.version) return;
    Commit commit = *saving_;
    commit.trained = writer_memory_.at(e.save);
    require(commit.trained.version == e.version, "a commit holds the state of its version");
    require(commit.trained.prompts.size() == commit.ledger.counters.delivered,
            "the ledger of a commit is that of its state");
    disk_.commits[e.version] = commit;
    disk_.newest = e.version;  // durable from here on, whether or not the answer arrives
    world_.log("commit " + to_string(e.version));
    world_.send([this, e] { feed(checkpoints_, checkpoint::Event{checkpoint::Committed{e.save}}); });
  });
}

void Head::perform(const checkpoint::Saved& e) {
  feed(run_, run::Event{run::Saved{e.version, disk_.commits.at(e.version).position}});
}

void Head::perform(const checkpoint::NotSaved& e) { feed(run_, run::Event{run::NotSaved{e.version, e.error.message}}); }

// ---- effects of the run director

void Head::perform(const run::BuildMesh& e) {
  world_.log("build mesh " + to_string(e.version));
  mesh_ = e;
  load_rank();
}

void Head::load_rank() {
  if (!mesh_ || !rank_ || !rank_->alive) return;
  Trained state = mesh_->from_commit ? disk_.commits.at(*mesh_->from_commit).trained : Trained{};
  state.version = mesh_->version;
  world_.after(world_.millis(20, 200), [this, rank = rank_, state, version = mesh_->version] {
    if (rank->alive && mesh_ && mesh_->version == version) rank->load(state);
  });
}

void Head::perform(const run::StartStage& e) {
  world_.log("stage " + std::to_string(e.stage) + " at " + std::to_string(e.steps_done));
  if (scenario_.stages[e.stage].kind != StageKind::kRl) return;
  RolloutPlan plan = scenario_.plan;
  plan.steps = scenario_.stages[e.stage].steps;
  feed(rollouts_, rollout::Event{rollout::BeginTraining{plan, e.steps_done, run_.position().version}});
}

void Head::perform(const run::TrainStep& e) {
  world_.send_reliably(2, [this, e] {
    if (rank_ && rank_->alive) rank_->train_alone(e.from);
  });
}

void Head::perform(const run::StartEvaluation& e) {
  feed(rollouts_, rollout::Event{rollout::Evaluate{e.evaluation, e.version, scenario_.problems}});
}

void Head::perform(const run::Save& e) {
  saving_ = Commit{e.position, rollouts_.snapshot(), {}};
  const auto again = ledger_from_json(to_json(saving_->ledger));
  require(again.has_value() && *again == saving_->ledger, "the ledger survives JSON");
  feed(checkpoints_, checkpoint::Event{checkpoint::Request{e.version, "{}"}});
}

void Head::perform(const run::StartExport&) {
  world_.after(50ms, [this] { feed(run_, run::Event{run::StageDone{}}); });
}

void Head::perform(const run::DrainRollouts&) { feed(rollouts_, rollout::Event{rollout::Drain{}}); }

void Head::perform(const run::Rollback& e) {
  world_.log("rollback: " + e.reason);
  disk_.next_epoch = std::max(disk_.next_epoch, e.epoch + 1);
  feed(rollouts_, rollout::Event{rollout::TrainerLost{e.reason}});
  feed(checkpoints_, checkpoint::Event{checkpoint::NewEpoch{e.epoch, 1}});
}

void Head::perform(const run::Ended& e) {
  world_.log("ended: " + std::string(to_string(e.exit)) + ", " + e.reason + "; " + progress());
  if (rank_) last_trained_ = rank_->trained();
  rollouts_.handle(rollout::End{CancelReason::kStopped}, world_.now());
  ended_ = e;
  kill_everything();
}

// ---- faults

std::shared_ptr<RolloutProcess> Head::rollout(WorkerId id) const {
  const auto it = rollout_processes_.find(id);
  return it == rollout_processes_.end() ? nullptr : it->second;
}

std::shared_ptr<RolloutProcess> Head::random_rollout() {
  if (rollout_processes_.empty()) return nullptr;
  auto it = rollout_processes_.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(world_.between(0, rollout_processes_.size() - 1)));
  return it->second;
}

void Head::crash_worker() {
  if (const auto worker = random_rollout(); worker && worker->alive) process_ended(worker->id, "killed by signal 9");
}

void Head::freeze_worker() {
  const auto worker = random_rollout();
  if (!worker || !worker->alive) return;
  world_.log("freeze " + to_string(worker->id));
  worker->frozen = true;
  world_.after(world_.millis(300, 6000), [worker] { worker->frozen = false; });
}

void Head::unfreeze_all() {
  for (const auto& [id, worker] : rollout_processes_) worker->frozen = false;
}

void Head::crash_rank() {
  if (rank_ && rank_->alive) process_ended(rank_->id, "killed by signal 9");
}

void Head::crash_writer() {
  if (!writers_.empty()) process_ended(*writers_.begin(), "killed by signal 9");
}

void Head::scale(std::uint32_t count) {
  world_.log("scale rollout=" + std::to_string(count));
  feed(membership_, membership::Event{membership::SetWanted{Role::kRollout, count, ++generation_}});
}

void Head::stop() { feed(run_, run::Event{run::Stop{}}); }

void Head::kill_everything() {
  alive_ = false;
  for (const auto& [id, worker] : rollout_processes_) worker->alive = false;
  if (rank_) rank_->alive = false;
  writers_.clear();
}

// ---- invariants

void Head::check_batch(const rollout::RequestTrainStep& e) {
  require(std::is_sorted(e.prompts.begin(), e.prompts.end()), "a batch is ordered by prompt");
  require(e.exhausted || e.prompts.size() == scenario_.plan.prompts_per_step, "a batch has P groups");
  for (const std::uint64_t prompt : e.prompts) {
    for (std::uint32_t i = 0; i < scenario_.plan.samples_per_prompt; ++i) {
      const auto it = oldest_.find({rollout::WorkKind::kTrain, 0, {prompt, i}});
      require(it != oldest_.end(),
              "sample " + std::to_string(prompt) + "/" + std::to_string(i) + " of a batch was delivered");
      require(it->second.epoch == e.from.epoch && it->second.step <= e.from.step,
              "no sample is newer than its trainer");
      require(e.from.step - it->second.step <= age_bound(scenario_.plan), "no sample is older than the age bound");
    }
  }
}

void Head::check() {
  if (ended_) return;
  const RolloutStats s = rollouts_.stats();
  const LedgerCounters& c = s.prompts;
  require(c.dispatched == c.delivered + c.cancelled() + c.in_flight, "dispatched = delivered + cancelled + in flight");
  require(s.evaluation_dispatched == s.evaluation_delivered + s.evaluation_cancelled + s.evaluation_in_flight,
          "evaluation work is conserved");
  require(c.in_flight + s.slots_held <= std::max(s.slots, c.in_flight), "at most B groups are open");
  const std::uint64_t stale = c.cancelled_by[static_cast<std::size_t>(CancelReason::kStale)];
  require(scenario_.plan.max_age || stale == 0, "by construction no group outlives the worst age");
  std::map<WorkerId, std::uint32_t> load;
  for (const auto& [prompt, group] : rollouts_.ledger().groups()) {
    for (const LedgerSample& sample : group.samples)
      load[sample.owner] += sample.state == SampleState::kAssigned ? 1 : 0;
  }
  if (s.evaluation_in_flight == 0) {
    for (const auto& [id, worker] : rollouts_.workers().all())
      require(worker.load == load[id], "the load of " + to_string(id) + " is what it was given");
  }
  for (const auto& [id, since] : draining_since_) {
    require(world_.now() - since < 15s, "the drain of " + to_string(id) + " ends");
  }
}

std::string Head::progress() const {
  const RolloutStats s = rollouts_.stats();
  return "at stage " + std::to_string(run_.position().stage) + ", " + to_string(run_.position().version) + "; served " +
         (rollouts_.served() ? to_string(*rollouts_.served()) : "none") + "; groups waiting " +
         std::to_string(s.waiting) + ", running " + std::to_string(s.running) + ", complete " +
         std::to_string(s.complete) + ", in batch " + std::to_string(s.in_batch) + ", held " +
         std::to_string(s.slots_held) + "; routable " + std::to_string(s.workers_routable);
}

} // namespace troupe::sim
