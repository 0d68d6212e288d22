#include "sim/head.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::sim {

using namespace protocol;
using namespace std::chrono_literals;

// ---- hosting the cores

void Head::receive(std::function<void()> action) {
  if (!alive_ || ended_) return;
  if (frozen_) inbox_.push_back(std::move(action));
  else action();
}

bool Head::log_record(const control::Record& record) {
  if (disk_.append(record, world_.now())) return true;
  world_.log("the control log is full");
  return false;
}

void Head::hear(WorkerId, const rollout::Event& event) {
  receive([this, event] {
    if (!begun_) return;
    if (const auto* done = std::get_if<rollout::StepDone>(&event)) return step_done(*done);
    if (const auto* returned = std::get_if<rollout::SampleReturned>(&event)) prefixes_[returned->name] = returned->oldest;
    if (const auto* done = std::get_if<rollout::SampleDone>(&event)) {
      const LedgerSample* sample = rollouts_.ledger().sample(done->name.id);
      const bool first = done->name.kind == rollout::WorkKind::kTrain && done->epoch == run_.epoch() && sample != nullptr &&
                         sample->state != SampleState::kDone;
      const bool evaluates = done->name.kind == rollout::WorkKind::kEvaluation && rollouts_.served();
      if (first || evaluates) oldest_[done->name] = done->oldest;
    }
    feed(rollouts_, event);
  });
}

void Head::hear(WorkerId, const checkpoint::Event& event) {
  receive([this, event] {
    feed(checkpoints_, event);
    // The writer renames the finished folder into place in one go: written and committed are one answer.
    if (const auto* written = std::get_if<checkpoint::Written>(&event))
      feed(checkpoints_, checkpoint::Event{checkpoint::Committed{written->save}});
  });
}

void Head::hear(WorkerId, const membership::Event& event) {
  receive([this, event] { feed(membership_, event); });
}

void Head::step_done(const rollout::StepDone& done) {
  if (done.version != PolicyVersion{run_.epoch(), run_.position().version.step + 1}) return;
  std::vector<rollout::Effect> then;
  if (batch_ && done.version == PolicyVersion{batch_->from.epoch, batch_->from.step + 1}) {
    batch_.reset();
    then = rollouts_.handle(done, now());
  }
  feed(run_, run::Event{run::StepDone{done.version}});  // its Save reaches the rank before the next step
  perform_all(rollouts_, then);
  check();
}

// ---- the processes of the machine

std::vector<std::shared_ptr<RankProcess>> Head::ranks() const {
  std::vector<std::shared_ptr<RankProcess>> found;
  for (const auto& [id, child] : machine_.agent->children)
    if (id.role == Role::kRank && child->alive && joined_.contains(id)) found.push_back(process<RankProcess>(id));
  return found;
}

std::shared_ptr<RankProcess> Head::rank() const {
  for (const auto& one : ranks())
    if (one->id.index == 0) return one;
  return nullptr;
}

std::shared_ptr<WriterProcess> Head::writer() const {
  for (const auto& [id, child] : machine_.agent->children)
    if (id.role == Role::kCheckpointWriter && child->alive && joined_.contains(id)) return process<WriterProcess>(id);
  return nullptr;
}

// ---- effects of the rollout director

void Head::perform(const rollout::DispatchWork& e) {
  const auto worker = process<RolloutProcess>(e.worker);
  if (worker && worker->alive)
    require(worker->holds() == rollouts_.served(), "work goes only to workers that hold the served version");
  require(rollouts_.workers().find(e.worker)->state == WorkerState::kServing, "work goes only to serving workers");
  order<RolloutProcess>(worker, [work = e.work, prefixes = prefixes_](RolloutProcess& w) { w.dispatch(work, prefixes); });
}

void Head::perform(const rollout::CancelSamples& e) {
  order<RolloutProcess>(process<RolloutProcess>(e.worker), [names = e.names](RolloutProcess& w) { w.cancel(names); });
}

void Head::perform(const rollout::CancelAll& e) {
  order<RolloutProcess>(process<RolloutProcess>(e.worker), [](RolloutProcess& w) { w.cancel_all(); });
}

void Head::perform(const rollout::RequestTrainStep& e) {
  check_batch(e);
  batch_ = e;
  log_record(control::Ordered{e.from, e.prompts});  // before the rank can make it
  for (const auto& one : ranks()) order<RankProcess>(one, [e](RankProcess& r) { r.train_rl(e); });
}

void Head::perform(const rollout::StartPublish& e) {
  require(!last_published_ || *last_published_ <= e.version, "versions are published in order");
  last_published_ = e.version;
  order<RankProcess>(rank(), [version = e.version](RankProcess& r) { r.start_publish(version); });
}

void Head::perform(const rollout::TellWorkerPull& e) {
  order<RolloutProcess>(process<RolloutProcess>(e.worker), [version = e.version](RolloutProcess& w) { w.pull(version); });
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
  machine_.agent->deliver([this, agent = machine_.agent, line = line_, id = e.worker] {
    if (agent->line == line) start_process(*agent, id);
  });
}

void Head::start_process(Agent& agent, WorkerId id) {
  world_.log("start " + to_string(id));
  for (const auto& [other, child] : agent.children)
    require(other.role != id.role || other.index != id.index || !child->alive, "one process of a name at a time");
  std::shared_ptr<Process> made;
  if (id.role == Role::kRollout) {
    // Weak: the agent owns the worker.
    const auto find_rank = [of = std::weak_ptr(machine_.agent)]() -> std::shared_ptr<RankProcess> {
      const auto owner = of.lock();
      if (!owner) return nullptr;
      for (const auto& [other, child] : owner->children)
        if (other.role == Role::kRank && other.index == 0 && child->alive) return std::dynamic_pointer_cast<RankProcess>(child);
      return nullptr;
    };
    made = std::make_shared<RolloutProcess>(world_, id, scenario_.sample_failures, find_rank);
  } else if (id.role == Role::kRank) {
    made = std::make_shared<RankProcess>(world_, id, machine_.rings);
  } else {
    made = std::make_shared<WriterProcess>(world_, id, disk_);
  }
  agent.children[id] = made;
  machine_.ever_started.push_back(made);
  made->start(line_);
}

void Head::perform(const membership::DrainWorker& e) {
  if (e.worker.role != Role::kRollout) return feed(membership_, membership::Event{membership::Empty{e.worker}});
  draining_since_[e.worker] = now();
  feed(rollouts_, rollout::Event{rollout::WorkerDraining{e.worker}});
  order<RolloutProcess>(process<RolloutProcess>(e.worker), [left = e.deadline - now()](RolloutProcess& w) { w.drain(left); });
}

void Head::perform(const membership::StopWorker& e) {
  const auto child = machine_.agent->children.find(e.worker);
  if (child == machine_.agent->children.end()) return;
  order<Process>(child->second, [this, id = e.worker](Process&) { machine_.end_process(id, "exit code 0"); });
}

void Head::perform(const membership::KillWorker& e) {
  world_.log("kill " + to_string(e.worker) + ": " + e.reason);
  killing_since_.try_emplace(e.worker, now());
  world_.send([this, agent = machine_.agent, line = line_, id = e.worker] {
    agent->deliver([this, agent, line, id] {
      if (agent->line == line) machine_.end_process(id, "killed by signal 9");
    });
  });
}

void Head::perform(const membership::Suspected& e) {
  if (e.worker.role == Role::kRollout) feed(rollouts_, rollout::Event{rollout::WorkerSuspected{e.worker}});
}

void Head::perform(const membership::Cleared& e) {
  if (e.worker.role == Role::kRollout) feed(rollouts_, rollout::Event{rollout::WorkerCleared{e.worker}});
}

void Head::perform(const membership::Gone& e) {
  draining_since_.erase(e.worker);
  killing_since_.erase(e.worker);
  joined_.erase(e.worker);
  if (e.worker.role == Role::kRollout) {
    order<RankProcess>(rank(), [id = e.worker](RankProcess& r) { r.store(publication::ReaderGone{id}); });
    feed(rollouts_, rollout::Event{rollout::WorkerGone{e.worker, e.reason}});
  } else if (e.worker.role == Role::kRank) {
    feed(mesh_, mesh::Event{mesh::Left{e.worker, e.reason, ""}});
  } else {
    feed(checkpoints_, checkpoint::Event{checkpoint::WriterLost{e.reason}});
  }
}

void Head::perform(const membership::GiveUp& e) { feed(run_, run::Event{run::Broken{e.reason}}); }

// ---- effects of the checkpoint coordinator: the writer

void Head::perform(const checkpoint::Prepare& e) {
  order<WriterProcess>(writer(), [save = e.save](WriterProcess& w) { w.prepare(save); });
}

void Head::perform(const checkpoint::CopyState& e) {
  order<RankProcess>(rank(), [e, to = writer()](RankProcess& r) { r.copy_state(e.save, e.version, to); });
}

void Head::perform(const checkpoint::Write& e) {
  if (saving_) order<WriterProcess>(writer(), [save = e.save, commit = *saving_](WriterProcess& w) { w.write(save, commit); });
}

void Head::perform(const checkpoint::Saved& e) {
  require(disk_.commits.contains(e.version), "what is said to be saved is on disk");
  require(!disk_.acknowledged || *disk_.acknowledged <= e.version, "commits are in the order of versions");
  disk_.acknowledged = e.version;
  saving_.reset();
  log_record(control::Committed{disk_.commits.at(e.version).position});
  feed(run_, run::Event{run::Saved{e.version, disk_.commits.at(e.version).position}});
}

void Head::perform(const checkpoint::NotSaved& e) {
  if (saving_ && saving_->position.version == e.version) saving_.reset();
  feed(run_, run::Event{run::NotSaved{e.version, e.error.message}});
}

// ---- effects of the run director

void Head::perform(const run::BuildMesh& e) {
  if (ended_) return;
  world_.log("build mesh " + to_string(e.version));
  if (!e.held) require(disk_.epochs.insert(e.version.epoch).second, "no epoch is used twice");
  const PolicyVersion from = e.held ? e.version : e.from_commit.value_or(PolicyVersion{});
  require(!disk_.acknowledged || from >= *disk_.acknowledged, "no committed step is lost");
  feed(mesh_, mesh::Event{mesh::Wanted{e}});
}

void Head::perform(const run::StartStage& e) {
  world_.log("stage " + std::to_string(e.stage) + " at " + std::to_string(e.steps_done));
  feed(checkpoints_, checkpoint::Event{checkpoint::LayoutUnknown{}});
  if (scenario_.stages[e.stage].kind != StageKind::kRl) return;
  RolloutPlan plan = scenario_.plan;
  plan.steps = scenario_.stages[e.stage].steps;
  feed(rollouts_, rollout::Event{rollout::BeginTraining{plan, e.steps_done, run_.position().version}});
}

void Head::perform(const run::TrainStep& e) {
  log_record(control::Ordered{e.from, {}});
  for (const auto& one : ranks())
    order_reliably<RankProcess>(20 + one->id.index, one, [from = e.from](RankProcess& r) { r.train_alone(from); });
}

void Head::perform(const run::StartEvaluation& e) {
  feed(rollouts_, rollout::Event{rollout::Evaluate{e.evaluation, e.version, scenario_.problems}});
}

void Head::perform(const run::Save& e) {
  saving_ = Commit{e.position, rollouts_.snapshot(), {}};
  saving_since_ = now();
  const auto again = ledger_from_json(to_json(saving_->ledger));
  require(again.has_value() && *again == saving_->ledger, "the ledger survives JSON");
  feed(checkpoints_, checkpoint::Event{checkpoint::Request{e.version, "{}"}});
}

void Head::perform(const run::StartExport&) {
  world_.after(50ms, [this] { receive([this] { feed(run_, run::Event{run::StageDone{}}); }); });
}

void Head::perform(const run::DrainRollouts&) { feed(rollouts_, rollout::Event{rollout::Drain{}}); }

void Head::perform(const run::Rollback& e) {
  world_.log("rollback: " + e.reason);
  if (!log_record(control::Epoch{e.epoch})) return feed(run_, run::Event{run::Broken{"the epoch cannot begin on a full disk"}});
  rolled_back_ = true;
  saving_.reset();
  batch_.reset();
  feed(mesh_, mesh::Event{mesh::Dropped{e.reason}});
  feed(rollouts_, rollout::Event{rollout::TrainerLost{e.reason}});
  feed(checkpoints_, checkpoint::Event{checkpoint::NewEpoch{e.epoch, 1}});
}

void Head::perform(const run::Progress& e) { log_record(control::Progress{e.position, rollouts_.snapshot()}); }

void Head::perform(const run::Ended& e) {
  world_.log("ended: " + std::string(to_string(e.exit)) + ", " + e.reason + "; " + progress());
  // The state at the end, which a rank that has died since may have made.
  if (const auto commit = disk_.commits.find(run_.position().version); commit != disk_.commits.end()) last_trained_ = commit->second.trained;
  for (const auto& [id, child] : machine_.agent->children)
    if (const auto made = process<RankProcess>(id); made && made->trained().version == run_.position().version) last_trained_ = made->trained();
  rollouts_.handle(rollout::End{CancelReason::kStopped}, now());
  log_record(control::Ended{e.exit});
  ended_ = e;
}

} // namespace troupe::sim
