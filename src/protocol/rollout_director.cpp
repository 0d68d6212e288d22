// What each event changes. Everything that follows from the new state is in rollout_loop.cpp and rollout_routing.cpp.
#include "protocol/rollout_director.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"

namespace troupe::protocol {

using namespace rollout;

RolloutDirector::RolloutDirector(const RolloutOptions& options, const LedgerSnapshot& restored)
    : options_(options), ledger_(restored), pool_(options.workers_max) {}

std::vector<Effect> RolloutDirector::handle(const Event& event, TimePoint now) {
  effects_.clear();
  now_ = now;
  if (failed_) return {};
  std::visit([this](const auto& e) { on(e); }, event);
  if (!failed_) advance();
  if (!failed_) arm();
  return std::exchange(effects_, {});
}

// ---- the trainer

void RolloutDirector::on(const TrainerReady& e) {
  TROUPE_CHECK(!served_ || served_->epoch == e.version.epoch, "a new epoch arrives as RolledBack");
  trainer_alive_ = true;
  progressed();
  for (auto& [id, worker] : pool_.all()) {
    worker.told.reset();
    worker.pulling = false;
  }
  if (training_ && e.version != training_->request.from) return on(StepDone{e.version});
  if (training_) {
    send_step();
  } else if (e.version > trainer_ || !served_) {
    trainer_ = e.version;
  }
  if (publishing_) send_publish(publishing_->version);
}

void RolloutDirector::on(const TrainerLost& e) {
  trainer_alive_ = false;
  note(LogLevel::kWarning, "the trainer is lost (" + e.reason + "); rollouts go on with the version they hold");
}

void RolloutDirector::on(const RolledBack& e) {
  TROUPE_CHECK(e.version.epoch > trainer_.epoch, "a rollback begins a new epoch");
  for (auto& [id, worker] : pool_.all()) {
    emit(CancelAll{id});
    worker.load = 0;
    worker.in_round = worker.pulling = false;
    worker.told.reset();
    if (worker.state == WorkerState::kDraining) release_if_empty(id);
  }
  for (const auto& [prompt, group] : ledger_.groups()) emit(DropResults{prompt});
  ledger_.rollback(e.ledger);
  evaluations_.clear();
  training_.reset();
  publishing_.reset();
  served_.reset();
  held_.clear();
  round_open_ = false;
  loop_ = false;
  barren_groups_ = 0;
  trainer_alive_ = true;
  trainer_ = e.version;
  progressed();
}

void RolloutDirector::on(const StepDone& e) {
  if (!training_ || e.version != PolicyVersion{training_->request.from.epoch, training_->request.from.step + 1}) return;
  trainer_ = e.version;
  for (const std::uint64_t prompt : training_->request.prompts) {
    ledger_.deliver(prompt);
    emit(DropResults{prompt});
  }
  held_[trainer_] += training_->request.prompts.size();
  training_.reset();
  ++steps_done_;
  progressed();
}

void RolloutDirector::on(const Published& e) {
  if (!publishing_ || e.version.epoch != publishing_->version.epoch || e.version < publishing_->version) return;
  if (e.version > trainer_ && loop_) return;  // a step this loop has not heard of: its own publication follows
  publishing_.reset();
  trainer_ = std::max(trainer_, e.version);
  served_ = e.version;
  progressed();
  // Cancel before the engines stop for the pull: no worker resumes a group that could not be used any more.
  cancel_outdated(PolicyVersion{trainer_.epoch, trainer_.step + (training_ ? 1 : 0)});
  round_open_ = true;
  for (auto& [id, worker] : pool_.all()) {
    const bool has_it = worker.holds == served_;  // its lease was on the newest slot before we heard of it
    // A joiner whose first pull was overtaken is waited for, too: else it would run after the versions for ever.
    const bool waited_for = worker.state == WorkerState::kServing || (worker.state == WorkerState::kJoining && worker.holds);
    worker.in_round = waited_for && !worker.unfit && !has_it;
    if (has_it && worker.state == WorkerState::kJoining) promote(worker);
  }
}

void RolloutDirector::on(const PublishFailed& e) {
  if (!publishing_ || e.version != publishing_->version) return;
  publishing_->sent = now_;  // sent again after command_resend
  note(LogLevel::kWarning, "publishing " + to_string(e.version) + " failed: " + e.reason);
}

// ---- workers

void RolloutDirector::on(const WorkerJoined& e) {
  if (pool_.find(e.worker) != nullptr) return;
  std::vector<WorkerId> replaced;
  for (const auto& [id, worker] : pool_.all()) {
    if (id.role == e.worker.role && id.index == e.worker.index && id.incarnation < e.worker.incarnation)
      replaced.push_back(id);
  }
  for (const WorkerId id : replaced) drop_worker(id, "replaced by incarnation " + std::to_string(e.worker.incarnation));
  PoolWorker* worker = pool_.add(e.worker);
  if (worker == nullptr)
    return note(LogLevel::kWarning,
                to_string(e.worker) + " is not taken: the pool is full or it is an old incarnation");
  worker->holds = e.holds;
  if (served_ && worker->holds == served_) promote(*worker);
}

void RolloutDirector::on(const WorkerPulled& e) {
  PoolWorker* worker = pool_.find(e.worker);
  if (worker == nullptr) return;
  worker->pulling = false;
  if (worker->holds && e.version <= *worker->holds) return;
  worker->holds = e.version;
  if (!served_ || e.version != *served_) return;
  worker->in_round = false;
  if (worker->state == WorkerState::kJoining) promote(*worker);
  progressed();
}

void RolloutDirector::promote(PoolWorker& worker) {
  worker.state = WorkerState::kServing;
  emit(WorkerServing{worker.id});
}

void RolloutDirector::on(const WorkerPullFailed& e) {
  PoolWorker* worker = pool_.find(e.worker);
  if (worker == nullptr || worker->told != e.version) return;
  worker->pulling = false;
  worker->retry_at = now_ + options_.pull_retry;
  note(LogLevel::kWarning, to_string(e.worker) + " could not pull " + to_string(e.version) + ": " + e.reason);
}

void RolloutDirector::on(const WorkerSuspected& e) {
  if (PoolWorker* worker = pool_.find(e.worker)) worker->suspect = true;
}

void RolloutDirector::on(const WorkerCleared& e) {
  if (PoolWorker* worker = pool_.find(e.worker)) worker->suspect = false;
}

void RolloutDirector::on(const WorkerDraining& e) {
  PoolWorker* worker = pool_.find(e.worker);
  if (worker == nullptr) return;
  worker->state = WorkerState::kDraining;
  worker->in_round = false;
  release_if_empty(e.worker);
}

void RolloutDirector::on(const WorkerGone& e) { drop_worker(e.worker, e.reason); }

void RolloutDirector::on(const WorkerProgress& e) {
  for (const SampleName& name : e.running) {
    if (name.kind == WorkKind::kTrain) {
      ledger_.news(name.id, e.worker, now_);
    } else {
      evaluations_.news(name, e.worker, now_);
    }
  }
}

void RolloutDirector::on(const WorkRefused& e) {
  if (fenced(e.work.epoch)) return;
  for (const SampleTask& task : e.work.samples) {
    const SampleName name{e.work.kind, e.work.evaluation, {e.work.prompt, task.sample}};
    const LedgerSample* sample = e.work.kind == WorkKind::kTrain ? ledger_.sample(name.id) : nullptr;
    give_back(name, task.attempt, e.worker, sample != nullptr ? sample->oldest : PolicyVersion{}, task.resume);
  }
  PoolWorker* worker = pool_.find(e.worker);
  if (worker == nullptr) return;
  if (e.code == ErrorCode::kDraining) return on(WorkerDraining{e.worker});
  worker->full_until = now_ + options_.pull_retry;
}

// ---- samples

void RolloutDirector::on(const SampleDone& e) {
  if (fenced(e.epoch)) return;
  if (!std::isfinite(e.reward)) {
    return on(SampleFailed{e.worker, e.epoch, e.name, e.attempt, "the reward is not a number"});
  }
  if (PoolWorker* worker = pool_.find(e.worker)) worker->full_until = now_;
  if (e.name.kind == WorkKind::kEvaluation) {
    const bool owned = owns(e.name, e.worker);
    std::optional<WorkerId> obsolete;
    if (!evaluations_.complete(e.name, e.worker, e.reward, obsolete)) return;
    unload(owned ? std::optional(e.worker) : obsolete);
    if (obsolete) emit(CancelSamples{*obsolete, {e.name}});
    return progressed();
  }
  const bool owned = owns(e.name, e.worker);
  const Ledger::Outcome outcome = ledger_.complete(e.name.id, e.worker, e.oldest, e.reward, e.trainable);
  if (outcome.accepted == Ledger::Accepted::kDuplicate || outcome.accepted == Ledger::Accepted::kLate) return;
  unload(owned ? std::optional(e.worker) : outcome.obsolete);
  if (outcome.obsolete) emit(CancelSamples{*outcome.obsolete, {e.name}});
  progressed();
  if (outcome.accepted != Ledger::Accepted::kGroupComplete) return;
  if (plan_.drop_zero_signal && ledger_.find(e.name.id.prompt)->zero_signal()) {
    cancel_group(e.name.id.prompt, CancelReason::kZeroSignal);
  } else {
    barren_groups_ = 0;
  }
}

void RolloutDirector::on(const SampleFailed& e) {
  if (fenced(e.epoch)) return;
  if (!fail_sample(e.name, e.attempt, e.worker)) return;
  // The same randomness and the same failure: a third attempt would tell nothing new.
  const bool poison = e.name.kind == WorkKind::kTrain && poison_.second_identical(to_string(e.name), e.reason);
  note(LogLevel::kWarning, "sample " + to_string(e.name) + ", attempt " + std::to_string(e.attempt) + " on " + to_string(e.worker) +
                               " failed" + (poison ? " twice in the same way and is not tried again: " : ": ") + e.reason);
  if (poison && ledger_.find(e.name.id.prompt) != nullptr) cancel_group(e.name.id.prompt, CancelReason::kAttempts);
}

void RolloutDirector::on(const SampleReturned& e) {
  if (!fenced(e.epoch)) give_back(e.name, e.attempt, e.worker, e.oldest, e.has_prefix);
}

// ---- control

void RolloutDirector::on(const BeginTraining& e) {
  TROUPE_CHECK(!loop_ && ledger_.groups().empty(), "a stage begins when the one before has ended");
  plan_ = e.plan;
  ledger_.configure({plan_.samples_per_prompt, plan_.attempts, buffer_groups(plan_), plan_.prompt_limit});
  trainer_ = std::max(trainer_, e.version);
  held_.clear();
  if (!served_ || *served_ != trainer_)
    held_[trainer_] = buffer_groups(plan_);  // born fresh: after the pull of what it trains on
  loop_ = true;
  steps_done_ = e.steps_done;
  barren_groups_ = 0;
  progressed();
}

void RolloutDirector::on(const Evaluate& e) {
  if (draining_) return;
  if (!loop_) trainer_ = std::max(trainer_, e.version);
  if (const Status added = evaluations_.add(e); !added) fail(added.error().message);
}

void RolloutDirector::on(const ServeWith& e) { serve_with_ = e.count; }

void RolloutDirector::on(const Pause&) { paused_ = true; }

void RolloutDirector::on(const Resume&) {
  paused_ = false;
  progressed();
}

void RolloutDirector::on(const Drain&) {
  draining_ = true;
  drained_sent_ = false;
}

void RolloutDirector::on(const End& e) {
  for (auto& [id, worker] : pool_.all()) {
    if (worker.load > 0) emit(CancelAll{id});
    worker.load = 0;
    release_if_empty(id);
  }
  while (!ledger_.groups().empty()) {
    const std::uint64_t prompt = ledger_.groups().begin()->first;
    ledger_.cancel(prompt, e.reason);
    emit(DropResults{prompt});
  }
  evaluations_.clear();
  training_.reset();
  held_.clear();
  loop_ = false;
  draining_ = false;
}

void RolloutDirector::on(const Wake&) {
  armed_.reset();  // it may have come early (a clock that was put back): then the next one is still to be asked for
  check_silence();
  check_commands();
  check_progress();
}

// ---- what others ask

RolloutStats RolloutDirector::stats() const {
  RolloutStats s;
  s.prompts = ledger_.counters();
  s.evaluation_dispatched = evaluations_.dispatched;
  s.evaluation_delivered = evaluations_.delivered;
  s.evaluation_cancelled = evaluations_.cancelled;
  s.evaluation_in_flight = evaluations_.in_flight();
  for (const auto& [prompt, group] : ledger_.groups()) {
    bool waiting = false;
    for (const LedgerSample& sample : group.samples) waiting = waiting || sample.state == SampleState::kWaiting;
    ++(group.in_batch ? s.in_batch : group.complete() ? s.complete : waiting ? s.waiting : s.running);
  }
  s.slots_held = slots_held();
  s.slots = loop_ ? buffer_groups(plan_) : 0;
  for (const auto& [id, worker] : pool_.all()) s.workers_routable += WorkerPool::routable(worker, served_) ? 1 : 0;
  s.age_max = age_max_;
  s.fenced = fenced_;
  s.stalls = stalls_;
  s.steps_done = steps_done_;
  return s;
}

void RolloutDirector::fail(std::string reason) {
  failed_ = true;
  emit(Fail{std::move(reason)});
}

bool RolloutDirector::fenced(std::uint32_t epoch) {
  if (epoch == trainer_.epoch) return false;
  ++fenced_;
  return true;
}

std::uint64_t RolloutDirector::age(PolicyVersion oldest, PolicyVersion at) {
  if (oldest.epoch != at.epoch) return std::numeric_limits<std::uint64_t>::max();
  return at.step > oldest.step ? at.step - oldest.step : 0;
}

std::uint64_t RolloutDirector::slots_held() const {
  std::uint64_t sum = 0;
  for (const auto& [version, slots] : held_) sum += slots;
  return sum;
}

} // namespace troupe::protocol
