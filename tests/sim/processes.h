/// @file
/// The simulated processes: a trainer rank with its weight store, and rollout workers. They follow the rules the
/// real ones must follow (which commands are idempotent, who answers what) and note down what the checks need.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "protocol/checkpoint_commit.h"
#include "protocol/membership.h"
#include "protocol/rollout_director.h"
#include "protocol/run_director.h"
#include "protocol/weight_publication.h"
#include "sim/world.h"

namespace troupe::sim {

using protocol::WorkerId;

/// What a trainer has learnt, in its order. The state that checkpoints carry.
struct Trained {
  PolicyVersion version;
  std::vector<std::uint64_t> prompts;
};

/// Messages to the head. The head decides over which link they come.
struct HeadPort {
  std::function<void(WorkerId, protocol::rollout::Event)> rollout;
  std::function<void(WorkerId, protocol::run::Event)> run;
  std::function<void(WorkerId, protocol::checkpoint::Event)> checkpoint;
  std::function<void(WorkerId, protocol::membership::Event)> membership;
};

/// A rank: one work thread that obeys commands in order, and the weight store beside it.
class RankProcess {
 public:
  RankProcess(World& world, HeadPort port, WorkerId name)
      : world_(world), port_(std::move(port)), id(name), store_(options()) {}

  void load(const Trained& state);
  void start_publish(PolicyVersion version);
  void train_rl(const protocol::rollout::RequestTrainStep& request);
  void train_alone(PolicyVersion from);
  void copy_state(std::uint64_t save);
  void store(const protocol::publication::Event& event);

  [[nodiscard]] const Trained& trained() const { return trained_; }
  /// (generation, version) of a slot's memory as a reader sees it now.
  [[nodiscard]] std::pair<std::uint64_t, PolicyVersion> memory(std::uint32_t slot) const { return memory_[slot]; }

 private:
  static protocol::PublicationOptions options();
  void begin_step(PolicyVersion from, std::vector<std::uint64_t> prompts, bool rl);
  void finish_step(std::uint64_t incarnation, PolicyVersion from, const std::vector<std::uint64_t>& prompts, bool rl);

  World& world_;
  HeadPort port_;

 public:
  const WorkerId id;
  bool alive = true;
  std::map<WorkerId, std::function<void(protocol::publication::Effect)>> readers;
  std::map<std::uint64_t, Trained>* writer_memory = nullptr;  ///< Copies of the state, by save.

 private:
  protocol::WeightPublication store_;
  Trained trained_;
  bool loaded_ = false;
  std::uint64_t loads_ = 0;
  std::optional<PolicyVersion> running_;
  std::set<PolicyVersion> copied_;
  std::pair<std::uint64_t, PolicyVersion> memory_[protocol::WeightPublication::kSlots] = {{1, {}}, {1, {}}};
};

/// A rollout worker: pulls weights under a lease, computes samples, drains.
class RolloutProcess {
 public:
  RolloutProcess(World& world, HeadPort port, WorkerId name) : world_(world), port_(std::move(port)), id(name) {}

  void start(std::function<std::shared_ptr<RankProcess>()> rank);
  /// `prefixes`: oldest version of the handed-back prefixes that go with the tasks to resume.
  void dispatch(const protocol::rollout::Work& work,
                const std::map<protocol::rollout::SampleName, PolicyVersion>& prefixes);
  void cancel(const std::vector<protocol::rollout::SampleName>& names);
  void cancel_all();
  void pull(PolicyVersion version);
  void drain(TimePoint deadline);
  void reader_event(const protocol::publication::Effect& effect);
  [[nodiscard]] std::optional<PolicyVersion> holds() const { return weights_.version(); }

  /// Fraction of samples that fail, set by the scenario.
  double failures = 0;

 private:
  struct Task {
    std::uint32_t epoch = 0;
    std::uint32_t attempt = 1;
    std::uint64_t ticket = 0;
    PolicyVersion oldest;
  };
  void heartbeat();
  void finish(const protocol::rollout::SampleName& name, std::uint64_t ticket);
  void transfer(const protocol::publication::Grant& grant, std::weak_ptr<RankProcess> rank);

  World& world_;
  HeadPort port_;

 public:
  const WorkerId id;
  bool alive = true;
  bool frozen = false;  ///< Stopped: sends and does nothing.

 private:
  std::function<std::shared_ptr<RankProcess>()> rank_;
  std::map<protocol::rollout::SampleName, Task> tasks_;
  protocol::HeldWeights weights_;
  std::uint64_t next_ticket_ = 1;
  std::uint64_t next_request_ = 1;
  std::uint64_t asked_ = 0;  // the lease request that waits for its grant
  std::uint64_t beats_ = 0;
  std::optional<PolicyVersion> pulling_;
  bool draining_ = false;
};

/// The reward of a sample: a pure function of its name, as sampling is; some prompts have no signal.
[[nodiscard]] double reward_of(const protocol::rollout::SampleName& name);

} // namespace troupe::sim
