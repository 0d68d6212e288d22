#include "protocol/ledger.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace troupe::protocol {

std::string_view to_string(CancelReason reason) {
  switch (reason) {
    case CancelReason::kAttempts: return "attempts";
    case CancelReason::kStale: return "stale";
    case CancelReason::kZeroSignal: return "zero_signal";
    case CancelReason::kRollback: return "rollback";
    case CancelReason::kStopped: return "stopped";
    case CancelReason::kFinished: return "finished";
  }
  return "unknown";
}

std::uint64_t LedgerCounters::cancelled() const {
  return std::accumulate(cancelled_by.begin(), cancelled_by.end(), std::uint64_t{0});
}

PolicyVersion LedgerGroup::oldest(PolicyVersion otherwise) const {
  std::optional<PolicyVersion> found;
  for (const LedgerSample& sample : samples) {
    if (sample.state == SampleState::kWaiting && !sample.resume) continue;
    found = found ? std::min(*found, sample.oldest) : sample.oldest;
  }
  return found.value_or(otherwise);
}

bool LedgerGroup::zero_signal() const {
  std::optional<double> first;
  for (const LedgerSample& sample : samples) {
    if (!sample.trainable) continue;
    if (!first) first = sample.reward;
    if (sample.reward != *first) return false;
  }
  return true;
}

Ledger::Ledger(const LedgerSnapshot& restored)
    : counters_(restored.counters),
      next_prompt_(restored.next_prompt),
      pending_(restored.pending.begin(), restored.pending.end()) {
  // What was in flight at the commit died with the run that wrote it; its prompts are pending.
  counters_.cancelled_by[static_cast<std::size_t>(CancelReason::kRollback)] += counters_.in_flight;
  counters_.in_flight = 0;
  check();
}

void Ledger::configure(const LedgerLimits& limits) {
  TROUPE_CHECK(groups_.empty(), "limits change only between stages");
  TROUPE_CHECK(limits.group_size > 0 && limits.attempts > 0 && limits.groups_max > 0, "limits are at least one");
  limits_ = limits;
}

bool Ledger::exhausted() const {
  return pending_.empty() && limits_.prompt_limit && next_prompt_ >= *limits_.prompt_limit;
}

std::optional<std::uint64_t> Ledger::dispatch() {
  if (groups_.size() >= limits_.groups_max || exhausted()) return std::nullopt;
  std::uint64_t prompt = 0;
  if (pending_.empty()) {
    prompt = next_prompt_++;
  } else {
    prompt = pending_.front();
    pending_.pop_front();
  }
  LedgerGroup group;
  group.prompt = prompt;
  group.birth = next_birth_++;
  group.samples.resize(limits_.group_size);
  const bool inserted = groups_.emplace(prompt, std::move(group)).second;
  TROUPE_CHECK(inserted, "a prompt is in flight at most once");
  waiting_ += limits_.group_size;
  ++counters_.dispatched;
  ++counters_.in_flight;
  check();
  return prompt;
}

std::uint32_t Ledger::assign(SampleId id, WorkerId owner, PolicyVersion version, TimePoint now) {
  LedgerSample* sample = find_sample(id);
  TROUPE_CHECK(sample != nullptr && sample->state == SampleState::kWaiting, "only a waiting sample is assigned");
  sample->state = SampleState::kAssigned;
  sample->owner = owner;
  sample->oldest = sample->resume ? std::min(sample->oldest, version) : version;
  sample->last_news = now;
  --waiting_;
  return sample->attempt;
}

Ledger::Outcome Ledger::complete(SampleId id, WorkerId from, PolicyVersion oldest, double reward, bool trainable) {
  LedgerSample* sample = find_sample(id);
  if (sample == nullptr) {
    ++counters_.late;
    return {Accepted::kLate, std::nullopt};
  }
  if (sample->state == SampleState::kDone) {
    ++counters_.duplicates;
    return {Accepted::kDuplicate, std::nullopt};
  }
  Outcome outcome{Accepted::kFirst, std::nullopt};
  if (sample->state == SampleState::kAssigned && sample->owner != from) outcome.obsolete = sample->owner;
  if (sample->state == SampleState::kWaiting) --waiting_;
  sample->state = SampleState::kDone;
  sample->owner = from;
  sample->oldest = oldest;
  sample->resume = false;
  sample->reward = reward;
  sample->trainable = trainable;
  LedgerGroup& group = groups_.at(id.prompt);
  ++group.done;
  if (group.complete()) outcome.accepted = Accepted::kGroupComplete;
  check();
  return outcome;
}

Ledger::Retry Ledger::fail(SampleId id, std::uint32_t attempt, WorkerId owner) {
  LedgerSample* sample = find_sample(id);
  if (sample == nullptr || sample->state != SampleState::kAssigned || sample->attempt != attempt ||
      sample->owner != owner) {
    return Retry::kIgnored;
  }
  sample->state = SampleState::kWaiting;
  sample->resume = false;
  ++waiting_;
  if (sample->attempt >= limits_.attempts) return Retry::kExhausted;
  ++sample->attempt;
  ++counters_.retries;
  return Retry::kWaiting;
}

bool Ledger::give_back(SampleId id, std::uint32_t attempt, WorkerId owner, PolicyVersion oldest, bool has_prefix) {
  LedgerSample* sample = find_sample(id);
  if (sample == nullptr || sample->state != SampleState::kAssigned || sample->attempt != attempt ||
      sample->owner != owner) {
    return false;
  }
  sample->state = SampleState::kWaiting;
  sample->resume = has_prefix;
  sample->oldest = std::min(sample->oldest, oldest);
  ++waiting_;
  return true;
}

void Ledger::news(SampleId id, WorkerId from, TimePoint now) {
  LedgerSample* sample = find_sample(id);
  if (sample != nullptr && sample->state == SampleState::kAssigned && sample->owner == from) sample->last_news = now;
}

void Ledger::to_batch(std::uint64_t prompt) {
  LedgerGroup& group = groups_.at(prompt);
  TROUPE_CHECK(group.complete() && !group.in_batch, "a batch takes complete groups, once");
  group.in_batch = true;
}

void Ledger::deliver(std::uint64_t prompt) {
  TROUPE_CHECK(groups_.at(prompt).in_batch, "only a batch is delivered");
  leave(prompt);
  ++counters_.delivered;
  check();
}

void Ledger::cancel(std::uint64_t prompt, CancelReason reason) {
  leave(prompt);
  ++counters_.cancelled_by[static_cast<std::size_t>(reason)];
  if (reason == CancelReason::kStopped)
    pending_.insert(std::lower_bound(pending_.begin(), pending_.end(), prompt), prompt);
  check();
}

void Ledger::rollback(const LedgerSnapshot& commit) {
  TROUPE_CHECK(commit.counters.delivered <= counters_.delivered, "a commit is never ahead of the run that wrote it");
  const std::uint64_t undone = counters_.delivered - commit.counters.delivered;
  counters_.cancelled_by[static_cast<std::size_t>(CancelReason::kRollback)] += undone + groups_.size();
  counters_.delivered -= undone;
  counters_.in_flight = 0;
  groups_.clear();
  waiting_ = 0;
  next_prompt_ = commit.next_prompt;
  pending_.assign(commit.pending.begin(), commit.pending.end());
  check();
}

const LedgerGroup* Ledger::find(std::uint64_t prompt) const {
  const auto it = groups_.find(prompt);
  return it == groups_.end() ? nullptr : &it->second;
}

const LedgerSample* Ledger::sample(SampleId id) const {
  const LedgerGroup* group = find(id.prompt);
  return group == nullptr || id.sample >= group->samples.size() ? nullptr : &group->samples[id.sample];
}

LedgerSample* Ledger::find_sample(SampleId id) { return const_cast<LedgerSample*>(std::as_const(*this).sample(id)); }

LedgerSnapshot after_delivery(LedgerSnapshot snapshot, const std::vector<std::uint64_t>& prompts) {
  LedgerCounters& c = snapshot.counters;
  for (const std::uint64_t prompt : prompts) {
    for (; snapshot.next_prompt <= prompt; ++snapshot.next_prompt) {
      snapshot.pending.push_back(snapshot.next_prompt);
      ++c.dispatched;
      ++c.in_flight;
    }
    const auto it = std::lower_bound(snapshot.pending.begin(), snapshot.pending.end(), prompt);
    if (it == snapshot.pending.end() || *it != prompt) continue;  // settled before: delivered once
    snapshot.pending.erase(it);
    if (c.in_flight == 0) {  // it waited to be dispatched again when the snapshot was taken
      ++c.dispatched;
      ++c.in_flight;
    }
    --c.in_flight;
    ++c.delivered;
  }
  return snapshot;
}

LedgerSnapshot recalled(LedgerSnapshot snapshot) {
  snapshot.counters.dispatched -= snapshot.counters.in_flight;
  snapshot.counters.in_flight = 0;
  return snapshot;
}

LedgerSnapshot Ledger::snapshot() const {
  LedgerSnapshot snapshot;
  snapshot.next_prompt = next_prompt_;
  snapshot.pending.assign(pending_.begin(), pending_.end());
  for (const auto& [prompt, group] : groups_) snapshot.pending.push_back(prompt);
  std::sort(snapshot.pending.begin(), snapshot.pending.end());
  snapshot.counters = counters_;
  return snapshot;
}

void Ledger::leave(std::uint64_t prompt) {
  const auto it = groups_.find(prompt);
  TROUPE_CHECK(it != groups_.end(), "only a group in flight leaves");
  for (const LedgerSample& sample : it->second.samples) waiting_ -= sample.state == SampleState::kWaiting ? 1 : 0;
  groups_.erase(it);
  --counters_.in_flight;
}

void Ledger::check() const {
  TROUPE_CHECK(counters_.dispatched == counters_.delivered + counters_.cancelled() + counters_.in_flight,
               "dispatched = delivered + cancelled + in flight");
  TROUPE_CHECK(counters_.in_flight == groups_.size(), "the groups in flight are those that are kept");
}

} // namespace troupe::protocol
