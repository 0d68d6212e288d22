#include "sim/processes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/ranks.h"

namespace troupe::sim {

using namespace protocol;
using namespace std::chrono_literals;

double reward_of(const rollout::SampleName& name) {
  if (name.kind == rollout::WorkKind::kTrain && mix64(name.id.prompt, 7) % 6 == 0) return 1;
  return static_cast<double>(mix64(name.id.prompt, name.id.sample) % 97);
}

bool Disk::append(const control::Record& record, TimePoint now) {
  if (now < full_until) {
    ++dropped_records;
    return false;
  }
  const auto read = record_from_json(to_json(record));
  require(read.has_value(), "a record of the control log reads again");
  const Status applied = apply(log, *read);
  require(applied.has_value(), "the control log takes every record: " + (applied ? "" : applied.error().message));
  return true;
}

// ---- any process

void Process::deliver(std::function<void()> action) {
  if (!alive) return;
  if (frozen_) inbox_.push_back(std::move(action));
  else action();
}

void Process::freeze(Duration time) {
  if (!alive || frozen_) return;
  world_.log("freeze " + to_string(id));
  frozen_ = true;
  world_.after(time, [this] { thaw(); });
}

void Process::thaw() {
  if (!std::exchange(frozen_, false)) return;
  for (auto& action : std::exchange(inbox_, {})) deliver(std::move(action));
}

void Process::start(std::shared_ptr<Line> line) {
  line_ = std::move(line);
  greet(std::nullopt, false);
  heartbeat();
}

void Process::lose_head(const std::shared_ptr<Line>& line) {
  if (line_ == line) line_.reset();
}

void Process::find_head(const std::shared_ptr<Line>& line) {
  if (!line->head) return;
  line_ = line;
  adopted([this, line](std::optional<PolicyVersion> holds) {
    if (alive && line_ == line) greet(holds, true);
  });
}

void Process::greet(std::optional<PolicyVersion> holds, bool adopted) {
  world_.send_reliably(1, [line = line_, from = id, holds, adopted] {
    if (line->head) line->head->hello(from, holds, adopted);
  });
}

void Process::store_set(std::uint64_t mesh, const std::string& key, const std::string& value) {
  if (!line_) return;
  world_.send_reliably(id.index + 200, [line = line_, mesh, key, value] {
    if (line->head) line->head->store_set(mesh, key, value);
  });
}

void Process::store_get(std::uint64_t mesh, std::uint64_t request, const std::string& key) {
  if (!line_) return;
  world_.send_reliably(id.index + 200, [line = line_, from = id, mesh, request, key] {
    if (line->head) line->head->store_get(from, mesh, request, key);
  });
}

void Process::heartbeat() {
  if (!alive) return;
  if (!frozen_) {
    tell(membership::Event{membership::Heard{id}});
    beat();
  }
  world_.after(200ms, [this] { heartbeat(); });
}

// ---- node agent

void Agent::deliver(std::function<void()> action) {
  if (!alive) return;
  if (frozen) inbox.push_back(std::move(action));
  else action();
}

void Agent::thaw() {
  if (!std::exchange(frozen, false)) return;
  for (auto& action : std::exchange(inbox, {})) deliver(std::move(action));
}

// ---- checkpoint writer

void WriterProcess::write(std::uint64_t save, Commit commit) {
  world_.after(world_.millis(20, 600), [this, save, commit = std::move(commit)] {
    deliver([this, save, commit]() mutable {
      const auto state = memory.find(save);
      if (state == memory.end()) return;
      if (world_.now() < disk_.full_until) return tell(checkpoint::Event{checkpoint::Failed{save, "no space left on device"}});
      const PolicyVersion version = commit.position.version;
      commit.trained = state->second;
      require(commit.trained.version == version, "a commit holds the state of its version");
      require(commit.trained.prompts.size() == commit.ledger.counters.delivered,
              "the ledger of a commit is that of its state");
      disk_.commits[version] = commit;
      if (!disk_.newest || *disk_.newest < version) disk_.newest = version;  // whether or not the answer arrives
      world_.log("commit " + to_string(version));
      tell(checkpoint::Event{checkpoint::Written{save}});
    });
  });
}

// ---- rollout worker

void RolloutProcess::beat() {
  if (++beats_ % 5 != 0) return;
  rollout::WorkerProgress progress{id, {}};
  for (const auto& [name, task] : tasks_) progress.running.push_back(name);
  tell(rollout::Event{progress});
}

void RolloutProcess::adopted(std::function<void(std::optional<PolicyVersion>)> say) {
  tasks_.clear();
  say(weights_.version());
}

void RolloutProcess::dispatch(const rollout::Work& work, const std::map<rollout::SampleName, PolicyVersion>& prefixes) {
  if (draining_) return tell(rollout::Event{rollout::WorkRefused{id, work, ErrorCode::kDraining}});
  for (const rollout::SampleTask& task : work.samples) {
    const rollout::SampleName name{work.kind, work.evaluation, {work.prompt, task.sample}};
    const std::uint64_t ticket = next_ticket_++;
    PolicyVersion oldest = weights_.version().value_or(PolicyVersion{});
    if (const auto prefix = prefixes.find(name); task.resume && prefix != prefixes.end())
      oldest = std::min(oldest, prefix->second);
    tasks_[name] = {work.epoch, task.attempt, ticket, oldest};
    const bool slow = name.id.prompt % 5 == 0;
    world_.after(slow ? world_.millis(200, 4000) : world_.millis(20, 400),
                 [this, name, ticket] { deliver([this, name, ticket] { finish(name, ticket); }); });
  }
}

void RolloutProcess::finish(const rollout::SampleName& name, std::uint64_t ticket) {
  const auto it = tasks_.find(name);
  if (it == tasks_.end() || it->second.ticket != ticket) return;
  const Task task = it->second;
  tasks_.erase(it);
  if (world_.chance(failures_)) {
    tell(rollout::Event{rollout::SampleFailed{id, task.epoch, name, task.attempt, "the environment failed"}});
  } else {
    tell(rollout::Event{rollout::SampleDone{id, task.epoch, name, task.attempt, task.oldest, reward_of(name), true}});
  }
}

void RolloutProcess::cancel(const std::vector<rollout::SampleName>& names) {
  for (const rollout::SampleName& name : names) tasks_.erase(name);
}

void RolloutProcess::pull(PolicyVersion version) {
  if (draining_) return;
  if (weights_.version() && *weights_.version() >= version)
    return tell(rollout::Event{rollout::WorkerPulled{id, *weights_.version()}});
  const std::shared_ptr<RankProcess> rank = rank_();
  if (!rank) return tell(rollout::Event{rollout::WorkerPullFailed{id, version, "the trainer is gone"}});
  pulling_ = version;
  const std::uint64_t request = next_request_++;
  asked_ = request;
  rank->readers[id] = [this, weak = std::weak_ptr(rank)](const publication::Effect& effect) {
    const auto rank_now = weak.lock();
    const Duration skew = rank_now ? rank_now->clock() - world_.now() : Duration{};
    world_.send([this, effect, weak, skew] {
      deliver([this, effect, weak, skew] {
        if (const auto* grant = std::get_if<publication::Grant>(&effect)) transfer(*grant, grant->deadline - skew, weak);
        if (const auto* refuse = std::get_if<publication::Refuse>(&effect))
          tell(rollout::Event{rollout::WorkerPullFailed{id, pulling_.value_or(PolicyVersion{}), refuse->error.message}});
      });
    });
  };
  world_.send([weak = std::weak_ptr(rank), me = id, request, version] {
    if (const auto r = weak.lock()) r->deliver([r, me, request, version] { r->store(publication::Lease{me, request, version}); });
  });
}

void RolloutProcess::transfer(const publication::Grant& grant, TimePoint deadline, const std::weak_ptr<RankProcess>& weak) {
  if (std::exchange(asked_, 0) != grant.request) return;  // the message came twice, or for a request given up
  const auto before = weak.lock();
  if (!before || before->memory(grant.slot).first != grant.generation) return;  // its key no longer works
  const Duration takes = world_.chance(0.05) ? world_.millis(2000, 6000) : world_.millis(20, 300);
  world_.after(takes, [this, grant, deadline, weak] { deliver([this, grant, deadline, weak] { take(grant, deadline, weak); }); });
}

void RolloutProcess::take(const publication::Grant& grant, TimePoint deadline, const std::weak_ptr<RankProcess>& weak) {
  const auto rank = weak.lock();
  if (!rank || !rank->alive || rank->memory(grant.slot).first != grant.generation)
    return tell(rollout::Event{rollout::WorkerPullFailed{id, grant.version, "the slot was registered anew"}});
  const bool in_time = world_.now() < deadline;
  require(!in_time || rank->memory(grant.slot).second == grant.version, "a slot under lease is not overwritten");
  // The digest tells bytes that changed under the transfer; they are never taken.
  const bool intact = rank->memory(grant.slot).second == grant.version;
  const auto before = weights_.version();
  const Status taken = weights_.accept(grant.version, {}, intact ? 1 : 2, 1);
  require(!before || *before <= *weights_.version(), "a worker's version never falls");
  if (taken) {
    for (auto& [name, task] : tasks_) task.oldest = std::min(task.oldest, grant.version);
  }
  world_.send([weak, me = id, request = grant.request] {
    if (const auto r = weak.lock()) r->deliver([r, me, request] { r->store(publication::LeaseEnded{me, request}); });
  });
  if (weights_.version()) tell(rollout::Event{rollout::WorkerPulled{id, *weights_.version()}});
}

void RolloutProcess::drain(Duration left) {
  if (draining_) return;
  draining_ = true;
  world_.after(left - 500ms, [this] {
    deliver([this] {
      for (const auto& [name, task] : std::exchange(tasks_, {}))
        tell(rollout::Event{rollout::SampleReturned{id, task.epoch, name, task.attempt, task.oldest, true}});
      tell(membership::Event{membership::Empty{id}});
    });
  });
}

} // namespace troupe::sim
