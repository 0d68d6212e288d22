// What follows from the director's state: publication and pulls, free slots, batches, the end of a stage.
#include <algorithm>

#include "base/check.h"
#include "protocol/rollout_director.h"

namespace troupe::protocol {

using namespace rollout;

void RolloutDirector::advance() {
  while (auto done = evaluations_.take_finished()) emit(std::move(*done));
  publish();
  tell_pulls();
  finish_pull_round();
  free_slots();
  request_step();
  publish();  // a step that ended with a cancelled batch may leave a version to publish
  open_groups();
  if (failed_) return;
  choose_spares();
  route();
  while (auto done = evaluations_.take_finished()) emit(std::move(*done));  // an evaluation without problems
  finish_training();
  if (draining_ && !training_ && !drained_sent_) {
    drained_sent_ = true;
    emit(Drained{});
  }
}

void RolloutDirector::publish() {
  if (!trainer_alive_ || publishing_ || round_open_ || draining_) return;
  if (served_ && *served_ >= trainer_) return;
  const Evaluation* evaluation = evaluations_.active();
  const bool holds_it = evaluation != nullptr && served_ && *served_ >= evaluation->request.version;
  if (holds_it) return;  // the evaluation needs the served version until it is over
  const bool wanted = loop_ || evaluation != nullptr || !served_;
  if (wanted) send_publish(trainer_);
}

void RolloutDirector::send_publish(PolicyVersion version) {
  publishing_ = Publish{version, now_};
  emit(StartPublish{version});
}

void RolloutDirector::tell_pulls() {
  if (!served_ || !trainer_alive_) return;
  for (auto& [id, worker] : pool_.all()) {
    if (worker.state == WorkerState::kDraining || worker.unfit || worker.holds >= served_) continue;
    if (worker.told != served_ && !worker.pulling) {
      worker.told = served_;
      worker.pulling = true;
      worker.pull_deadline = now_ + options_.pull_deadline;
    } else if (now_ >= worker.pull_deadline) {
      worker.unfit = true;
      worker.in_round = false;
      emit(WorkerUnfit{
          id, "it has not pulled " + to_string(*worker.told) + " within " + format_duration(options_.pull_deadline)});
      continue;
    } else if (now_ < worker.retry_at) {
      continue;
    }
    worker.retry_at = now_ + options_.command_resend;
    emit(TellWorkerPull{id, *worker.told});
  }
}

void RolloutDirector::finish_pull_round() {
  if (!round_open_) return;
  for (const auto& [id, worker] : pool_.all()) {
    if (worker.in_round) return;
  }
  round_open_ = false;
  publish();
}

void RolloutDirector::free_slots() {
  if (!served_ || round_open_) return;
  held_.erase(held_.begin(), held_.upper_bound(*served_));
}

void RolloutDirector::cancel_outdated(PolicyVersion upcoming) {
  const std::uint64_t bound = age_bound(plan_);
  std::vector<std::uint64_t> outdated;
  for (const auto& [prompt, group] : ledger_.groups()) {
    if (!group.in_batch && age(group.oldest(upcoming), upcoming) > bound) outdated.push_back(prompt);
  }
  for (const std::uint64_t prompt : outdated) cancel_group(prompt, CancelReason::kStale);
}

void RolloutDirector::open_groups() {
  if (!loop_ || draining_ || paused_ || !served_ || failed_) return;
  const std::uint64_t under_way = steps_done_ + (training_ ? 1 : 0);
  const std::uint64_t in_batch = training_ ? training_->request.prompts.size() : 0;
  const std::uint64_t wanted = (plan_.steps - std::min(plan_.steps, under_way)) * plan_.prompts_per_step;
  std::uint64_t open = ledger_.groups().size() - in_batch;
  while (open < wanted && ledger_.groups().size() + slots_held() < buffer_groups(plan_)) {
    if (!ledger_.dispatch()) return;
    ++open;
  }
  TROUPE_CHECK(ledger_.groups().size() + slots_held() <= buffer_groups(plan_), "at most B groups are open");
}

std::vector<std::uint64_t> RolloutDirector::choose_batch(bool& exhausted) const {
  std::vector<const LedgerGroup*> open;
  for (const auto& [prompt, group] : ledger_.groups()) {
    if (!group.in_batch) open.push_back(&group);
  }
  std::sort(open.begin(), open.end(), [](const LedgerGroup* a, const LedgerGroup* b) { return a->birth < b->birth; });
  const LedgerGroup* anchor =
      nullptr;  // the oldest group that is not ready; the window begins there and does not slide
  std::vector<std::uint64_t> batch;
  for (const LedgerGroup* group : open) {
    if (batch.size() == plan_.prompts_per_step) break;
    if (anchor != nullptr && group->birth >= anchor->birth + window_groups(plan_)) break;
    if (group->complete()) {
      batch.push_back(group->prompt);
    } else if (anchor == nullptr) {
      anchor = group;
    }
  }
  const bool all_taken = anchor == nullptr && batch.size() == open.size();
  exhausted = ledger_.exhausted() && all_taken;
  if (batch.size() < plan_.prompts_per_step && !exhausted) batch.clear();
  std::sort(batch.begin(), batch.end());
  return batch;
}

void RolloutDirector::request_step() {
  if (!loop_ || !trainer_alive_ || training_ || paused_ || draining_ || failed_ || steps_done_ >= plan_.steps) return;
  const bool copied = (served_ && *served_ == trainer_) || (publishing_ && publishing_->version == trainer_);
  if (!copied) return;  // the next step would overwrite weights that nobody has copied yet
  cancel_outdated(trainer_);
  if (failed_) return;
  RequestTrainStep request;
  request.from = trainer_;
  request.prompts = choose_batch(request.exhausted);
  if (request.prompts.empty()) return;
  std::uint64_t sum = 0;
  for (const std::uint64_t prompt : request.prompts) {
    const std::uint64_t steps = age(ledger_.find(prompt)->oldest(trainer_), trainer_);
    TROUPE_CHECK(steps <= age_bound(plan_), "no group is consumed beyond the age bound");
    request.age_max = std::max(request.age_max, steps);
    sum += steps;
    ledger_.to_batch(prompt);
  }
  request.age_mean = static_cast<double>(sum) / static_cast<double>(request.prompts.size());
  age_max_ = std::max(age_max_, request.age_max);
  training_ = Train{std::move(request), now_};
  send_step();
}

void RolloutDirector::send_step() {
  training_->sent = now_;
  emit(training_->request);
}

void RolloutDirector::finish_training() {
  if (!loop_ || training_ || draining_) return;
  const bool exhausted = ledger_.exhausted() && ledger_.groups().empty();
  if (steps_done_ < plan_.steps && !exhausted) return;
  if (!served_ || *served_ != trainer_ || round_open_) return;
  loop_ = false;
  while (!ledger_.groups().empty()) cancel_group(ledger_.groups().begin()->first, CancelReason::kFinished);
  held_.clear();
  emit(TrainingDone{exhausted && steps_done_ < plan_.steps});
}

void RolloutDirector::arm() {
  std::optional<TimePoint> first;
  const auto consider = [&first](TimePoint at) { first = first ? std::min(*first, at) : at; };
  if (trainer_alive_ && training_) consider(training_->sent + options_.command_resend);
  if (trainer_alive_ && publishing_) consider(publishing_->sent + options_.command_resend);
  for (const auto& [id, worker] : pool_.all()) {
    const bool pulling =
        served_ && trainer_alive_ && worker.state != WorkerState::kDraining && !worker.unfit && worker.holds < served_;
    if (pulling) consider(std::min(worker.retry_at, worker.pull_deadline));
    if (worker.full_until > now_) consider(worker.full_until);
  }
  if (silence_check_) consider(*silence_check_);
  if (expects_progress()) consider(last_progress_ + options_.progress_deadline);
  if (!first) return;
  if (armed_ && *armed_ > now_ && *armed_ <= *first) return;  // it wakes early enough
  armed_ = *first;
  emit(ArmTimer{*first});
}

} // namespace troupe::protocol
