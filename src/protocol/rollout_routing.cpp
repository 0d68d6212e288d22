// Work to workers and back: routing, re-issue, and the watchdogs that name who owes what.
#include <algorithm>

#include "protocol/rollout_director.h"

namespace troupe::protocol {

using namespace rollout;

std::string rollout::to_string(const SampleName& name) {
  if (name.kind == WorkKind::kTrain) return troupe::to_string(name.id);
  return "eval " + std::to_string(name.evaluation) + " problem " + std::to_string(name.id.prompt);
}

// Spares take over from the lowest index up. Who is too many (a suspect came back, a replacement joined) stays as a spare: the idlest, then the
// highest index; what it has it finishes.
void RolloutDirector::choose_spares() {
  if (!serve_with_) return;
  std::vector<PoolWorker*> serving, spares;
  for (auto& [id, worker] : pool_.all()) {
    if (!WorkerPool::fit(worker)) continue;
    if (!worker.spare) serving.push_back(&worker);
    else if (worker.holds == served_) spares.push_back(&worker);
  }
  const auto key = [](const PoolWorker* worker) { return std::pair(worker->load == 0, worker->id.index); };
  std::sort(serving.begin(), serving.end(), [&](const PoolWorker* a, const PoolWorker* b) { return key(a) < key(b); });
  while (serving.size() > *serve_with_) {
    serving.back()->spare = true;
    serving.pop_back();
  }
  for (PoolWorker* worker : spares) {
    if (serving.size() >= *serve_with_) return;
    worker->spare = false;
    serving.push_back(worker);
    note(LogLevel::kInfo, to_string(worker->id) + " was a spare and takes over");
  }
}

void RolloutDirector::route() {
  if (paused_ || draining_ || !served_) return;
  route_evaluations();
  route_groups();
}

void RolloutDirector::route_evaluations() {
  Evaluation* evaluation = evaluations_.active();
  if (evaluation == nullptr || *served_ < evaluation->request.version || publishing_ || round_open_) return;
  if (!evaluation->version) evaluation->version = served_;
  while (!evaluation->waiting.empty()) {
    const std::uint64_t index = *evaluation->waiting.begin();
    const EvaluationProblem& problem = evaluation->problems[index];
    const auto avoid = problem.attempt > 1 ? std::optional(problem.owner) : std::nullopt;
    PoolWorker* worker = pool_.pick(served_, 1, options_.worker_samples_max, avoid, now_);
    if (worker == nullptr) return;
    Work work;
    work.number = next_work_++;
    work.kind = WorkKind::kEvaluation;
    work.evaluation = evaluation->request.evaluation;
    work.epoch = trainer_.epoch;
    work.prompt = index;
    work.samples = {{0, evaluations_.assign(index, worker->id, now_), false}};
    load(*worker, 1);
    emit(DispatchWork{worker->id, std::move(work)});
  }
}

void RolloutDirector::route_groups() {
  if (ledger_.waiting() == 0) return;
  std::vector<const LedgerGroup*> waiting;
  for (const auto& [prompt, group] : ledger_.groups()) {
    const auto waits = [](const LedgerSample& sample) { return sample.state == SampleState::kWaiting; };
    if (std::any_of(group.samples.begin(), group.samples.end(), waits)) waiting.push_back(&group);
  }
  std::sort(waiting.begin(), waiting.end(),
            [](const LedgerGroup* a, const LedgerGroup* b) { return a->birth < b->birth; });
  for (const LedgerGroup* group : waiting) {
    Work work;
    work.epoch = trainer_.epoch;
    work.prompt = group->prompt;
    std::optional<WorkerId> avoid;
    for (std::uint32_t i = 0; i < group->samples.size(); ++i) {
      const LedgerSample& sample = group->samples[i];
      if (sample.state != SampleState::kWaiting) continue;
      work.samples.push_back({i, sample.attempt, sample.resume});
      if (sample.attempt > 1) avoid = sample.owner;
    }
    const auto samples = static_cast<std::uint32_t>(work.samples.size());
    PoolWorker* worker = pool_.pick(served_, samples, options_.worker_samples_max, avoid, now_);
    if (worker == nullptr) return;  // oldest first: younger groups do not overtake for room
    work.number = next_work_++;
    for (const SampleTask& task : work.samples)
      ledger_.assign({work.prompt, task.sample}, worker->id, *worker->holds, now_);
    load(*worker, samples);
    emit(DispatchWork{worker->id, std::move(work)});
  }
}

void RolloutDirector::load(PoolWorker& worker, std::uint32_t samples) {
  worker.load += samples;
  if (!silence_check_) silence_check_ = now_ + options_.sample_silence;
}

void RolloutDirector::unload(std::optional<WorkerId> id) {
  if (!id) return;
  PoolWorker* worker = pool_.find(*id);
  if (worker == nullptr || worker->load == 0) return;
  --worker->load;
  release_if_empty(*id);
}

bool RolloutDirector::owns(const SampleName& name, WorkerId worker) {
  if (name.kind == WorkKind::kTrain) {
    const LedgerSample* sample = ledger_.sample(name.id);
    return sample != nullptr && sample->state == SampleState::kAssigned && sample->owner == worker;
  }
  const EvaluationProblem* problem = evaluations_.find(name);
  return problem != nullptr && problem->state == SampleState::kAssigned && problem->owner == worker;
}

bool RolloutDirector::fail_sample(const SampleName& name, std::uint32_t attempt, WorkerId owner) {
  if (name.kind == WorkKind::kEvaluation) {
    if (!evaluations_.fail(name, attempt, owner)) return false;
    unload(owner);
    return true;
  }
  const Ledger::Retry retry = ledger_.fail(name.id, attempt, owner);
  if (retry == Ledger::Retry::kIgnored) return false;
  unload(owner);
  if (retry == Ledger::Retry::kExhausted) cancel_group(name.id.prompt, CancelReason::kAttempts);
  return true;
}

void RolloutDirector::give_back(const SampleName& name, std::uint32_t attempt, WorkerId owner, PolicyVersion oldest,
                                bool has_prefix) {
  const bool taken = name.kind == WorkKind::kTrain ? ledger_.give_back(name.id, attempt, owner, oldest, has_prefix)
                                                   : evaluations_.give_back(name, attempt, owner);
  if (taken) unload(owner);
}

void RolloutDirector::cancel_group(std::uint64_t prompt, CancelReason reason) {
  std::map<WorkerId, std::vector<SampleName>> owners;
  const LedgerGroup& group = *ledger_.find(prompt);
  for (std::uint32_t i = 0; i < group.samples.size(); ++i) {
    const LedgerSample& sample = group.samples[i];
    if (sample.state == SampleState::kAssigned) owners[sample.owner].push_back({WorkKind::kTrain, 0, {prompt, i}});
  }
  ledger_.cancel(prompt, reason);
  ++held_[trainer_];  // the slot is free at once, unless workers have yet to pull what the trainer holds
  for (auto& [owner, names] : owners) {
    for (std::size_t i = 0; i < names.size(); ++i) unload(owner);
    emit(CancelSamples{owner, std::move(names)});
  }
  emit(DropResults{prompt});
  if (reason == CancelReason::kFinished ||
      ++barren_groups_ < std::uint64_t{plan_.empty_batches_max} * plan_.prompts_per_step)
    return;
  const auto count = [this](CancelReason r) {
    return std::to_string(ledger_.counters().cancelled_by[static_cast<std::size_t>(r)]);
  };
  fail(std::to_string(plan_.empty_batches_max) + " batches in a row gave no group to train on (in the whole run: " +
       count(CancelReason::kZeroSignal) + " with equal rewards, " + count(CancelReason::kAttempts) + " failed, " +
       count(CancelReason::kStale) + " too old); check the reward, the difficulty of the task and rl.attempts");
}

void RolloutDirector::drop_worker(WorkerId id, const std::string& reason) {
  if (pool_.find(id) == nullptr) return;
  std::vector<Owned> owned = owned_samples();
  std::erase_if(owned, [id](const Owned& o) { return o.owner != id; });
  pool_.remove(id);
  if (!owned.empty()) {
    note(LogLevel::kWarning,
         to_string(id) + " is gone (" + reason + "); " + std::to_string(owned.size()) + " samples are re-issued");
  }
  for (const Owned& o : owned) {
    if (!failed_) fail_sample(o.name, o.attempt, id);
  }
}

void RolloutDirector::release_if_empty(WorkerId id) {
  PoolWorker* worker = pool_.find(id);
  if (worker == nullptr || worker->state != WorkerState::kDraining || worker->load > 0 || worker->released) return;
  worker->released = true;
  emit(WorkerReleased{id});
}

std::vector<RolloutDirector::Owned> RolloutDirector::owned_samples() const {
  std::vector<Owned> owned;
  for (const auto& [prompt, group] : ledger_.groups()) {
    for (std::uint32_t i = 0; i < group.samples.size(); ++i) {
      const LedgerSample& sample = group.samples[i];
      if (sample.state != SampleState::kAssigned) continue;
      owned.push_back({{WorkKind::kTrain, 0, {prompt, i}}, sample.attempt, sample.owner, sample.last_news});
    }
  }
  const Evaluation* evaluation = evaluations_.active();
  if (evaluation == nullptr) return owned;
  for (std::uint64_t i = 0; i < evaluation->problems.size(); ++i) {
    const EvaluationProblem& problem = evaluation->problems[i];
    if (problem.state != SampleState::kAssigned) continue;
    owned.push_back({{WorkKind::kEvaluation, evaluation->request.evaluation, {i, 0}},
                     problem.attempt,
                     problem.owner,
                     problem.last_news});
  }
  return owned;
}

void RolloutDirector::check_silence() {
  if (!silence_check_ || now_ < *silence_check_) return;
  silence_check_.reset();
  Stalled stalled;
  std::map<WorkerId, std::vector<SampleName>> owners;
  std::vector<Owned> silent;
  for (const Owned& o : owned_samples()) {
    const TimePoint due = o.last_news + options_.sample_silence;
    if (now_ < due) {
      silence_check_ = silence_check_ ? std::min(*silence_check_, due) : due;
      continue;
    }
    stalled.items.push_back({o.name, o.owner, now_ - o.last_news});
    owners[o.owner].push_back(o.name);
    silent.push_back(o);
  }
  if (silent.empty()) return;
  stalls_ += silent.size();
  emit(std::move(stalled));
  for (auto& [owner, names] : owners) emit(CancelSamples{owner, std::move(names)});
  for (const Owned& o : silent) {
    if (!failed_) fail_sample(o.name, o.attempt, o.owner);
  }
}

void RolloutDirector::check_commands() {
  if (!trainer_alive_ || failed_) return;
  if (publishing_ && now_ >= publishing_->sent + options_.command_resend) send_publish(publishing_->version);
  if (training_ && now_ >= training_->sent + options_.command_resend) send_step();
}

bool RolloutDirector::expects_progress() const {
  if (paused_ || !trainer_alive_) return false;  // somebody else brings the trainer back
  if (training_ || publishing_) return true;
  return !pool_.all().empty() && (loop_ || evaluations_.active() != nullptr);
}

void RolloutDirector::check_progress() {
  if (failed_) return;
  if (!expects_progress()) return progressed();
  if (now_ < last_progress_ + options_.progress_deadline) return;
  fail("no progress for " + format_duration(now_ - last_progress_) + ": waiting for " + waiting_for());
}

std::string RolloutDirector::waiting_for() const {
  std::string text;
  const auto add = [&text](const std::string& item) { text += (text.empty() ? "" : ", ") + item; };
  if (training_) add("the trainer's step from " + troupe::to_string(training_->request.from));
  if (publishing_) add("the publication of " + troupe::to_string(publishing_->version));
  for (const auto& [id, worker] : pool_.all()) {
    if (served_ && worker.holds != served_) add(to_string(id) + " to pull " + troupe::to_string(*served_));
  }
  constexpr std::size_t kNamesMax = 16;
  const std::vector<Owned> owned = owned_samples();
  for (std::size_t i = 0; i < std::min(owned.size(), kNamesMax); ++i) {
    add("sample " + to_string(owned[i].name) + " on " + to_string(owned[i].owner));
  }
  if (owned.size() > kNamesMax) add(std::to_string(owned.size() - kNamesMax) + " further samples");
  if (!text.empty()) return text;
  for (const auto& [id, worker] : pool_.all()) {
    const bool able = WorkerPool::routable(worker, served_);
    add(to_string(id) + " (" +
        (able             ? "idle"
         : worker.suspect ? "suspect"
         : worker.unfit   ? "unfit"
                          : std::string(to_string(worker.state))) +
        ")");
  }
  return "work for " + text;
}

} // namespace troupe::protocol
