#include "sim/processes.h"

#include <algorithm>
#include <utility>

namespace troupe::sim {

using namespace protocol;
using namespace std::chrono_literals;

double reward_of(const rollout::SampleName& name) {
  if (name.kind == rollout::WorkKind::kTrain && mix64(name.id.prompt, 7) % 6 == 0) return 1;
  return static_cast<double>(mix64(name.id.prompt, name.id.sample) % 97);
}

// ---- rank

PublicationOptions RankProcess::options() {
  PublicationOptions o;
  o.lease = 3s;
  o.leases_max = 16;
  return o;
}

void RankProcess::load(const Trained& state) {
  trained_ = state;
  loaded_ = true;
  ++loads_;
  running_.reset();
  copied_.clear();
  store(publication::NewEpoch{state.version.epoch});
  port_.run(id, run::MeshReady{state.version});
}

void RankProcess::start_publish(PolicyVersion version) {
  if (!loaded_ || version.epoch != trained_.version.epoch) return;
  store(publication::Publish{copied_.contains(version) ? version : trained_.version});
}

void RankProcess::train_rl(const rollout::RequestTrainStep& request) {
  const PolicyVersion next{request.from.epoch, request.from.step + 1};
  if (!loaded_ || running_) return;
  if (trained_.version == next) return port_.rollout(id, rollout::StepDone{next});
  if (trained_.version != request.from) return;
  if (!copied_.contains(request.from)) store(publication::Publish{request.from});
  begin_step(request.from, request.prompts, true);
}

void RankProcess::train_alone(PolicyVersion from) {
  if (loaded_ && !running_ && trained_.version == from) begin_step(from, {}, false);
}

void RankProcess::begin_step(PolicyVersion from, std::vector<std::uint64_t> prompts, bool rl) {
  running_ = from;
  world_.after(world_.millis(50, 600),
               [this, from, prompts = std::move(prompts), rl, n = loads_] { finish_step(n, from, prompts, rl); });
}

void RankProcess::finish_step(std::uint64_t incarnation, PolicyVersion from, const std::vector<std::uint64_t>& prompts,
                              bool rl) {
  if (!alive || incarnation != loads_) return;
  if (rl && !copied_.contains(from)) {  // the optimizer waits for the copy of the weights it overwrites
    world_.after(50ms, [this, incarnation, from, prompts, rl] { finish_step(incarnation, from, prompts, rl); });
    return;
  }
  running_.reset();
  ++trained_.version.step;
  for (const std::uint64_t prompt : prompts) {
    const bool twice = std::find(trained_.prompts.begin(), trained_.prompts.end(), prompt) != trained_.prompts.end();
    require(!twice, "prompt " + std::to_string(prompt) + " is trained twice");
    trained_.prompts.push_back(prompt);
  }
  world_.log("rank: step to " + to_string(trained_.version));
  if (rl) {
    port_.rollout(id, rollout::StepDone{trained_.version});
  } else {
    port_.run(id, run::StepDone{trained_.version});
  }
}

void RankProcess::copy_state(std::uint64_t save) {
  if (!loaded_) return;
  (*writer_memory)[save] = trained_;
  port_.checkpoint(id, checkpoint::StateCopied{save, 0, trained_.version});
}

void RankProcess::store(const publication::Event& event) {
  for (const publication::Effect& effect : store_.handle(event, world_.now())) {
    if (const auto* renew = std::get_if<publication::RenewSlot>(&effect)) {
      memory_[renew->slot].first = renew->generation;
    } else if (const auto* fill = std::get_if<publication::FillSlot>(&effect)) {
      memory_[fill->slot].second = fill->version;  // from here on the bytes change under a reader
      require(trained_.version == fill->version || trained_.version.epoch != fill->version.epoch,
              "the live weights are those to publish");
      copied_.insert(fill->version);
      world_.after(world_.millis(5, 60), [this, f = *fill] {
        if (alive) store(publication::Filled{f.slot, f.version});
      });
    } else if (const auto* ready = std::get_if<publication::Ready>(&effect)) {
      port_.rollout(id, rollout::Published{ready->version});
    } else if (const auto* rejected = std::get_if<publication::Rejected>(&effect)) {
      port_.rollout(id, rollout::PublishFailed{rejected->version, rejected->error.message});
    } else if (const auto* timer = std::get_if<ArmTimer>(&effect)) {
      world_.after(timer->at - world_.now(), [this] {
        if (alive) store(Wake{});
      });
    } else if (const auto* grant = std::get_if<publication::Grant>(&effect)) {
      if (readers.contains(grant->reader)) readers[grant->reader](effect);
    } else if (const auto* refuse = std::get_if<publication::Refuse>(&effect)) {
      if (readers.contains(refuse->reader)) readers[refuse->reader](effect);
    }
  }
}

// ---- rollout worker

void RolloutProcess::start(std::function<std::shared_ptr<RankProcess>()> rank) {
  rank_ = std::move(rank);
  heartbeat();
}

void RolloutProcess::heartbeat() {
  if (!alive) return;
  if (!frozen) {
    port_.membership(id, membership::Heard{id});
    if (++beats_ % 5 == 0) {
      rollout::WorkerProgress progress{id, {}};
      for (const auto& [name, task] : tasks_) progress.running.push_back(name);
      port_.rollout(id, progress);
    }
  }
  world_.after(200ms, [this] { heartbeat(); });
}

void RolloutProcess::dispatch(const rollout::Work& work, const std::map<rollout::SampleName, PolicyVersion>& prefixes) {
  if (!alive || frozen) return;
  if (draining_) return port_.rollout(id, rollout::WorkRefused{id, work, ErrorCode::kDraining});
  for (const rollout::SampleTask& task : work.samples) {
    const rollout::SampleName name{work.kind, work.evaluation, {work.prompt, task.sample}};
    const std::uint64_t ticket = next_ticket_++;
    PolicyVersion oldest = weights_.version().value_or(PolicyVersion{});
    if (const auto prefix = prefixes.find(name); task.resume && prefix != prefixes.end())
      oldest = std::min(oldest, prefix->second);
    tasks_[name] = {work.epoch, task.attempt, ticket, oldest};
    const bool slow = name.id.prompt % 5 == 0;
    world_.after(slow ? world_.millis(200, 4000) : world_.millis(20, 400),
                 [this, name, ticket] { finish(name, ticket); });
  }
}

void RolloutProcess::finish(const rollout::SampleName& name, std::uint64_t ticket) {
  if (!alive) return;
  const auto it = tasks_.find(name);
  if (it == tasks_.end() || it->second.ticket != ticket) return;
  if (frozen) {
    world_.after(100ms, [this, name, ticket] { finish(name, ticket); });
    return;
  }
  const Task task = it->second;
  tasks_.erase(it);
  if (world_.chance(failures)) {
    port_.rollout(id, rollout::SampleFailed{id, task.epoch, name, task.attempt, "the environment failed"});
  } else {
    port_.rollout(id, rollout::SampleDone{id, task.epoch, name, task.attempt, task.oldest, reward_of(name), true});
  }
}

void RolloutProcess::cancel(const std::vector<rollout::SampleName>& names) {
  for (const rollout::SampleName& name : names) tasks_.erase(name);
}

void RolloutProcess::cancel_all() { tasks_.clear(); }

void RolloutProcess::pull(PolicyVersion version) {
  if (!alive || frozen || draining_) return;
  if (weights_.version() && *weights_.version() >= version) {
    return port_.rollout(id, rollout::WorkerPulled{id, *weights_.version()});
  }
  const std::shared_ptr<RankProcess> rank = rank_();
  if (!rank) return port_.rollout(id, rollout::WorkerPullFailed{id, version, "the trainer is gone"});
  pulling_ = version;
  const std::uint64_t request = next_request_++;
  asked_ = request;
  rank->readers[id] = [this, weak = std::weak_ptr(rank)](const publication::Effect& effect) {
    world_.send([this, effect, weak] {
      if (!alive || frozen) return;
      if (const auto* grant = std::get_if<publication::Grant>(&effect)) transfer(*grant, weak);
      if (const auto* refuse = std::get_if<publication::Refuse>(&effect)) {
        port_.rollout(id, rollout::WorkerPullFailed{id, pulling_.value_or(PolicyVersion{}), refuse->error.message});
      }
    });
  };
  world_.send([weak = std::weak_ptr(rank), me = id, request, version] {
    if (const auto r = weak.lock(); r && r->alive) r->store(publication::Lease{me, request, version});
  });
}

void RolloutProcess::transfer(const publication::Grant& grant, std::weak_ptr<RankProcess> weak) {
  if (std::exchange(asked_, 0) != grant.request) return;  // the message came twice, or for a request given up
  const auto before = weak.lock();
  if (!before || before->memory(grant.slot).first != grant.generation) return;  // its key no longer works
  const Duration takes = world_.chance(0.05) ? world_.millis(2000, 6000) : world_.millis(20, 300);
  world_.after(takes, [this, grant, weak] {
    const auto rank = weak.lock();
    if (!alive || frozen) return;
    if (!rank || !rank->alive || rank->memory(grant.slot).first != grant.generation) {
      return port_.rollout(id, rollout::WorkerPullFailed{id, grant.version, "the slot was registered anew"});
    }
    const bool in_time = world_.now() < grant.deadline;
    require(!in_time || rank->memory(grant.slot).second == grant.version, "a slot under lease is not overwritten");
    // The digest tells bytes that changed under the transfer; they are never taken.
    const bool intact = rank->memory(grant.slot).second == grant.version;
    const Status taken = weights_.accept(grant.version, {}, intact ? 1 : 2, 1);
    if (taken) {
      for (auto& [name, task] : tasks_) task.oldest = std::min(task.oldest, grant.version);
    }
    world_.send([weak, me = id, request = grant.request] {
      if (const auto r = weak.lock(); r && r->alive) r->store(publication::LeaseEnded{me, request});
    });
    if (weights_.version()) port_.rollout(id, rollout::WorkerPulled{id, *weights_.version()});
  });
}

void RolloutProcess::drain(TimePoint deadline) {
  if (!alive || draining_) return;
  draining_ = true;
  world_.after(std::max(Duration{0}, deadline - world_.now() - 500ms), [this] {
    if (!alive || frozen) return;
    for (const auto& [name, task] : std::exchange(tasks_, {})) {
      port_.rollout(id, rollout::SampleReturned{id, task.epoch, name, task.attempt, task.oldest, true});
    }
    port_.membership(id, membership::Empty{id});
  });
}

} // namespace troupe::sim
