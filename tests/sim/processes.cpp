#include "sim/processes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

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

void Process::heartbeat() {
  if (!alive) return;
  if (!frozen_) {
    tell(membership::Event{membership::Heard{id}});
    beat();
  }
  world_.after(200ms, [this] { heartbeat(); });
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

// ---- rank

RankProcess::RankProcess(World& world, WorkerId name) : Process(world, name), store_(options()) {}

PublicationOptions RankProcess::options() {
  PublicationOptions o;
  o.lease = 3s;
  o.leases_max = 16;
  return o;
}

void RankProcess::adopted(std::function<void(std::optional<PolicyVersion>)> say) {
  const auto holds = [this] { return loaded_ ? std::optional(trained_.version) : std::nullopt; };
  if (!running_) return say(holds());
  say_ = [say = std::move(say), holds](std::optional<PolicyVersion>) { say(holds()); };  // what is under way is done first
}

void RankProcess::build(const run::BuildMesh& order, const Trained& state, std::function<void()> fail) {
  if (order.held) {
    if (!loaded_ || trained_.version != order.version) return fail();
    return tell_reliably(run::Event{run::MeshReady{order.version}});
  }
  trained_ = state;
  loaded_ = true;
  ++loads_;
  running_.reset();
  store(publication::NewEpoch{state.version.epoch});
  copy_weights();
  tell_reliably(run::Event{run::MeshReady{state.version}});
}

void RankProcess::start_publish(PolicyVersion version) {
  if (loaded_) store(publication::Publish{version});
}

void RankProcess::train_rl(const rollout::RequestTrainStep& request) {
  if (!loaded_ || running_ || request.from.epoch != trained_.version.epoch) return;
  if (request.from < trained_.version) return tell(rollout::Event{rollout::StepDone{trained_.version}});
  if (trained_.version != request.from) return;
  begin_step(request.from, request.prompts, true);
}

void RankProcess::train_alone(PolicyVersion from) {
  if (loaded_ && !running_ && trained_.version == from) begin_step(from, {}, false);
}

void RankProcess::begin_step(PolicyVersion from, std::vector<std::uint64_t> prompts, bool rl) {
  running_ = from;
  world_.after(world_.millis(50, 600), [this, prompts = std::move(prompts), rl, n = loads_] {
    deliver([this, n, prompts, rl] { finish_step(n, prompts, rl); });
  });
}

void RankProcess::finish_step(std::uint64_t incarnation, const std::vector<std::uint64_t>& prompts, bool rl) {
  if (incarnation != loads_) return;
  running_.reset();
  ++trained_.version.step;
  for (const std::uint64_t prompt : prompts) {
    const bool twice = std::find(trained_.prompts.begin(), trained_.prompts.end(), prompt) != trained_.prompts.end();
    require(!twice, "prompt " + std::to_string(prompt) + " is trained twice");
    trained_.prompts.push_back(prompt);
  }
  world_.log("rank: step to " + to_string(trained_.version));
  const rollout::Event done = rollout::StepDone{trained_.version};
  if (rl) tell(done);  // asked for again when it is lost
  else tell_reliably(done);
  copy_weights();
  if (const auto say = std::exchange(say_, nullptr)) say(std::nullopt);
}

void RankProcess::copy_state(std::uint64_t save, PolicyVersion version, const std::shared_ptr<WriterProcess>& writer) {
  if (!loaded_ || !writer || !writer->alive) return;
  if (trained_.version == version) writer->memory[save] = trained_;  // else it is too late, and says so
  tell(checkpoint::Event{checkpoint::StateCopied{save, 0, trained_.version}});
}

void RankProcess::jump_clock(Duration by) {
  skew_ += by;
  deliver([this] { store(Wake{}); });
}

void RankProcess::store(const publication::Event& event) {
  for (const publication::Effect& effect : store_.handle(event, clock())) {
    if (const auto* renew = std::get_if<publication::RenewSlot>(&effect)) {
      memory_[renew->slot].first = renew->generation;
    } else if (const auto* fill = std::get_if<publication::FillSlot>(&effect)) {
      fill_ = *fill;
      if (!running_) world_.after(0ms, [this] { deliver([this] { copy_weights(); }); });
    } else if (const auto* ready = std::get_if<publication::Ready>(&effect)) {
      tell(rollout::Event{rollout::Published{ready->version}});
    } else if (const auto* rejected = std::get_if<publication::Rejected>(&effect)) {
      tell(rollout::Event{rollout::PublishFailed{rejected->version, rejected->error.message}});
    } else if (const auto* timer = std::get_if<ArmTimer>(&effect)) {
      world_.after(timer->at - clock(), [this] { deliver([this] { store(Wake{}); }); });
    } else if (const auto* grant = std::get_if<publication::Grant>(&effect)) {
      if (readers.contains(grant->reader)) readers[grant->reader](effect);
    } else if (const auto* refuse = std::get_if<publication::Refuse>(&effect)) {
      if (readers.contains(refuse->reader)) readers[refuse->reader](effect);
    }
  }
}

// The work thread reaches the order after the step it is at: what it holds then is what it copies.
void RankProcess::copy_weights() {
  if (!fill_ || running_) return;
  const publication::FillSlot order = *std::exchange(fill_, std::nullopt);
  const PolicyVersion now = trained_.version;
  const bool fits = now.epoch == order.version.epoch && now >= order.version;
  if (fits) memory_[order.slot].second = now;  // from here on the bytes change under a reader
  world_.after(world_.millis(5, 60), [this, order, now, fits] {
    deliver([this, order, now, fits] {
      if (fits) store(publication::Filled{order.slot, now});
      else store(publication::FillFailed{order.slot, order.version, "the trainer holds " + to_string(now)});
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
