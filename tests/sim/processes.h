/// @file
/// The simulated processes: rollout workers, a checkpoint writer, the node agent; the ranks are in ranks.h. They follow the rules
/// the real ones must follow (which commands are idempotent, who answers what) and note down what the checks need. They outlive a head.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "protocol/checkpoint_commit.h"
#include "protocol/control_log.h"
#include "protocol/membership.h"
#include "protocol/mesh.h"
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

/// One committed checkpoint.
struct Commit {
  protocol::RunPosition position;
  protocol::LedgerSnapshot ledger;
  Trained trained;
};

/// What outlives every process.
struct Disk {
  std::map<PolicyVersion, Commit> commits;
  std::optional<PolicyVersion> newest;
  protocol::control::State log;
  TimePoint full_until{};
  std::set<std::uint32_t> epochs;               ///< That ever trained: no number is used twice.
  std::optional<PolicyVersion> acknowledged;    ///< The newest commit that a head was told of.
  std::uint64_t dropped_records = 0;

  /// As ControlLog::append. False when the disk is full.
  bool append(const protocol::control::Record& record, TimePoint now);
};

/// What a head hears. Everything but hello, exits and what builds a mesh comes over lossy links.
struct HeadEar {
  virtual ~HeadEar() = default;
  virtual void hear(WorkerId from, const protocol::rollout::Event& event) = 0;
  virtual void hear(WorkerId from, const protocol::mesh::Event& event) = 0;
  virtual void hear(WorkerId from, const protocol::checkpoint::Event& event) = 0;
  virtual void hear(WorkerId from, const protocol::membership::Event& event) = 0;
  virtual void hello(WorkerId from, std::optional<PolicyVersion> holds, bool adopted) = 0;
  virtual void store_set(std::uint64_t mesh, const std::string& key, const std::string& value) = 0;
  virtual void store_get(WorkerId from, std::uint64_t mesh, std::uint64_t request, const std::string& key) = 0;
};

/// The connections of one head; `head` is null when it is gone.
struct Line {
  HeadEar* head = nullptr;
};

class Process {
 public:
  Process(World& world, WorkerId name) : id(name), world_(world) {}
  virtual ~Process() = default;

  /// Something arrives or a timer of its own is due: done now, on waking, or never.
  void deliver(std::function<void()> action);
  void freeze(Duration time);
  void thaw();
  /// It dies.
  virtual void end() { alive = false; }
  /// A new process: greets the head that started it.
  void start(std::shared_ptr<Line> line);
  void lose_head(const std::shared_ptr<Line>& line);
  void find_head(const std::shared_ptr<Line>& line);
  [[nodiscard]] const std::shared_ptr<Line>& line() const { return line_; }
  /// What reached it while it was frozen and will not be done: it refers to the process itself.
  void drop_inbox() { inbox_.clear(); }

  const WorkerId id;
  bool alive = true;

 protected:
  template <class Event>
  void tell(const Event& event) {
    if (!line_) return;
    world_.send([line = line_, from = id, event] {
      if (line->head) line->head->hear(from, event);
    });
  }
  template <class Event>
  void tell_reliably(const Event& event) {
    if (!line_) return;
    world_.send_reliably(id.index + 100, [line = line_, from = id, event] {
      if (line->head) line->head->hear(from, event);
    });
  }
  void store_set(std::uint64_t mesh, const std::string& key, const std::string& value);
  void store_get(std::uint64_t mesh, std::uint64_t request, const std::string& key);
  virtual void beat() {}
  /// Greets the next head, with what it holds; `say` may be called later.
  virtual void adopted(std::function<void(std::optional<PolicyVersion>)> say) { say(std::nullopt); }

  World& world_;

 private:
  void greet(std::optional<PolicyVersion> holds, bool adopted);
  void heartbeat();
  std::shared_ptr<Line> line_;
  bool frozen_ = false;
  std::deque<std::function<void()>> inbox_;
};

/// A writer: memory for states, and the disk.
class WriterProcess final : public Process {
 public:
  WriterProcess(World& world, WorkerId name, Disk& disk) : Process(world, name), disk_(disk) {}
  void prepare(std::uint64_t save) { tell(protocol::checkpoint::Event{protocol::checkpoint::Prepared{save}}); }
  void write(std::uint64_t save, Commit commit);
  std::map<std::uint64_t, Trained> memory;  ///< By save. The rank puts its state there.

 private:
  Disk& disk_;
};

class RankProcess;

/// A rollout worker: pulls weights under a lease, computes samples, drains.
class RolloutProcess final : public Process {
 public:
  RolloutProcess(World& world, WorkerId name, double failures, std::function<std::shared_ptr<RankProcess>()> rank)
      : Process(world, name), failures_(failures), rank_(std::move(rank)) {}

  /// `prefixes`: oldest version of the handed-back prefixes that go with the tasks to resume.
  void dispatch(const protocol::rollout::Work& work,
                const std::map<protocol::rollout::SampleName, PolicyVersion>& prefixes);
  void cancel(const std::vector<protocol::rollout::SampleName>& names);
  void cancel_all() { tasks_.clear(); }
  void pull(PolicyVersion version);
  void drain(Duration left);
  [[nodiscard]] std::optional<PolicyVersion> holds() const { return weights_.version(); }

 private:
  struct Task {
    std::uint32_t epoch = 0;
    std::uint32_t attempt = 1;
    std::uint64_t ticket = 0;
    PolicyVersion oldest;
  };
  void beat() override;
  void adopted(std::function<void(std::optional<PolicyVersion>)> say) override;
  void finish(const protocol::rollout::SampleName& name, std::uint64_t ticket);
  void transfer(const protocol::publication::Grant& grant, TimePoint deadline, const std::weak_ptr<RankProcess>& rank);
  void take(const protocol::publication::Grant& grant, TimePoint deadline, const std::weak_ptr<RankProcess>& rank);

  double failures_;  // fraction of samples
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

/// The node agent: everybody on its machine dies with it.
struct Agent {
  /// What it is asked, and what it sees of its children: now, on waking, or never.
  void deliver(std::function<void()> action);
  void thaw();

  bool alive = true, frozen = false;
  std::deque<std::function<void()>> inbox;
  std::shared_ptr<Line> line;
  std::map<WorkerId, std::shared_ptr<Process>> children;  ///< Everybody it ever started.
};

/// The reward of a sample: a pure function of its name, as sampling is; some prompts have no signal.
[[nodiscard]] double reward_of(const protocol::rollout::SampleName& name);

} // namespace troupe::sim
