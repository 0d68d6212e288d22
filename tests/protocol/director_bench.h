/// @file
/// A rollout director with obedient workers and trainer, for tests that want one thing to go wrong at a time.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "protocol/rollout_director.h"
#include "protocol/support.h"

namespace troupe::protocol {

/// Feeds events and keeps what came out. Publications and pulls are answered at once unless switched off.
class DirectorBench {
 public:
  explicit DirectorBench(const RolloutOptions& options = {}, const LedgerSnapshot& restored = {})
      : director(options, restored) {}

  /// Sends one event; what it caused is in `last` (and, answers included, in the fields below).
  std::vector<rollout::Effect> send(const rollout::Event& event) {
    std::vector<rollout::Effect> seen;
    std::vector<rollout::Event> queue{event};
    while (!queue.empty()) {
      const rollout::Event next = queue.front();
      queue.erase(queue.begin());
      for (rollout::Effect& effect : director.handle(next, now)) {
        answer(effect, queue);
        seen.push_back(std::move(effect));
      }
    }
    return seen;
  }

  void begin(const RolloutPlan& plan, std::uint32_t workers) {
    send(rollout::TrainerReady{{0, 0}});
    for (std::uint32_t i = 0; i < workers; ++i) send(rollout::WorkerJoined{rollout_worker(i), {}});
    send(rollout::BeginTraining{plan, 0, {}});
  }

  /// The reward that makes groups trainable: it differs between samples.
  static double reward(const rollout::SampleName& name) { return name.id.sample % 2; }

  std::vector<rollout::Effect> done(const rollout::SampleName& name, double value) {
    const auto it = running.find(name);
    if (it == running.end()) return {};
    const Assignment a = it->second;
    running.erase(it);
    return send(
        rollout::SampleDone{a.worker, director.trainer_version().epoch, name, a.attempt, a.version, value, true});
  }
  std::vector<rollout::Effect> done(const rollout::SampleName& name) { return done(name, reward(name)); }

  /// Finishes every sample of a prompt.
  void finish_prompt(std::uint64_t prompt) {
    std::vector<rollout::SampleName> names;
    for (const auto& [name, a] : running) {
      if (name.kind == rollout::WorkKind::kTrain && name.id.prompt == prompt) names.push_back(name);
    }
    for (const auto& name : names) done(name);
  }

  /// Finishes what is running now, oldest prompt first.
  void finish_running() {
    std::vector<rollout::SampleName> names;
    for (const auto& [name, a] : running) names.push_back(name);
    for (const auto& name : names) done(name);
  }

  std::vector<rollout::Effect> step_done() {
    const PolicyVersion from = steps.back().from;
    return send(rollout::StepDone{{from.epoch, from.step + 1}});
  }

  std::vector<rollout::Effect> wait(Duration d) {
    now += d;
    return send(Wake{});
  }

  [[nodiscard]] bool step_requested() const {
    return !steps.empty() && steps.back().from == director.trainer_version();
  }

  struct Assignment {
    WorkerId worker;
    std::uint32_t attempt = 1;
    PolicyVersion version;
    bool resume = false;
  };

  RolloutDirector director;
  TimePoint now = at(0s);
  bool answer_publish = true;
  bool answer_pull = true;
  std::map<rollout::SampleName, Assignment> running;
  std::vector<rollout::RequestTrainStep> steps;
  std::vector<PolicyVersion> publications;

 private:
  void answer(const rollout::Effect& effect, std::vector<rollout::Event>& queue) {
    if (const auto* e = std::get_if<rollout::DispatchWork>(&effect)) {
      for (const rollout::SampleTask& task : e->work.samples) {
        const rollout::SampleName name{e->work.kind, e->work.evaluation, {e->work.prompt, task.sample}};
        running[name] = {e->worker, task.attempt, *director.workers().find(e->worker)->holds, task.resume};
      }
    } else if (const auto* c = std::get_if<rollout::CancelSamples>(&effect)) {
      for (const auto& name : c->names) {
        const auto it = running.find(name);
        if (it != running.end() && it->second.worker == c->worker) running.erase(it);
      }
    } else if (const auto* a = std::get_if<rollout::CancelAll>(&effect)) {
      std::erase_if(running, [&](const auto& entry) { return entry.second.worker == a->worker; });
    } else if (const auto* s = std::get_if<rollout::RequestTrainStep>(&effect)) {
      steps.push_back(*s);
    } else if (const auto* p = std::get_if<rollout::StartPublish>(&effect)) {
      publications.push_back(p->version);
      if (answer_publish) queue.push_back(rollout::Published{p->version});
    } else if (const auto* t = std::get_if<rollout::TellWorkerPull>(&effect)) {
      if (answer_pull) queue.push_back(rollout::WorkerPulled{t->worker, t->version});
    }
  }
};

} // namespace troupe::protocol
