/// @file
/// The simulated trainer ranks: how they find each other, step together, and what each of them sees when one is lost.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/mesh.h"
#include "sim/processes.h"

namespace troupe::sim {

/// The connections of one mesh. A collective ends for every member once all have come to it; or it breaks for all of them, at once when a
/// member's process ends or gives the mesh up, after the deadline when one does not come.
class Ring {
 public:
  Ring(World& world, std::uint32_t ranks) : world_(world), ranks_(ranks) {}
  /// `at`: what the member holds; all must hold the same. One of the two is called, later.
  void arrive(std::uint32_t rank, PolicyVersion at, std::function<void()> done, std::function<void(std::string)> broken);
  void end(const std::string& reason);

 private:
  struct Waiting {
    PolicyVersion at;
    std::function<void()> done;
    std::function<void(std::string)> broken;
  };
  World& world_;
  std::uint32_t ranks_;
  std::uint64_t round_ = 0;
  std::map<std::uint32_t, Waiting> waiting_;
  std::optional<std::string> ended_;
};

/// By number of the mesh: addresses lead to the same connections.
using Rings = std::map<std::uint64_t, std::shared_ptr<Ring>>;

/// A rank: one work thread that obeys commands in order, and, in rank/0, the weight store beside it.
class RankProcess final : public Process {
 public:
  RankProcess(World& world, WorkerId name, Rings& rings);
  /// `ranks`: size of the mesh. `fail`: it holds something else than `state`, which it is taken to hold.
  void build(const protocol::mesh::Build& order, std::uint32_t ranks, const Trained& state, std::function<void()> fail);
  void abort(std::uint64_t mesh, const std::string& reason);
  void answered(const protocol::MeshStore::Answer& answer);
  void start_publish(PolicyVersion version);
  void train_rl(const protocol::rollout::RequestTrainStep& request);
  void train_alone(PolicyVersion from);
  void copy_state(std::uint64_t save, PolicyVersion version, const std::shared_ptr<WriterProcess>& writer);
  void store(const protocol::publication::Event& event);
  void jump_clock(Duration by);
  void end() override;

  [[nodiscard]] const Trained& trained() const { return trained_; }
  /// The mesh it was last connected in.
  [[nodiscard]] std::uint64_t connected_in() const { return connected_in_; }
  [[nodiscard]] TimePoint clock() const { return world_.now() + skew_; }
  /// (generation, version) of a slot's memory as a reader sees it now.
  [[nodiscard]] std::pair<std::uint64_t, PolicyVersion> memory(std::uint32_t slot) const { return memory_[slot]; }

  std::map<WorkerId, std::function<void(protocol::publication::Effect)>> readers;

 private:
  static protocol::PublicationOptions options();
  void adopted(std::function<void(std::optional<PolicyVersion>)> say) override;
  void find_the_others();
  void connect();
  void connected();
  void broken(const std::string& error);
  void end_before(std::uint64_t mesh, const std::string& reason);
  /// What a collective's end leads to, when this process still lives and is in the same mesh.
  std::function<void()> here(std::function<void()> action);
  void begin_step(PolicyVersion from, std::vector<std::uint64_t> prompts, bool rl);
  void computed(std::uint64_t incarnation, const std::vector<std::uint64_t>& prompts, bool rl);
  void copy_weights();
  void finish_step(std::uint64_t incarnation, const std::vector<std::uint64_t>& prompts, bool rl);

  Rings& rings_;
  std::uint64_t mesh_ = 0, ended_before_ = 0, connected_in_ = 0;
  std::uint32_t ranks_ = 1;
  std::shared_ptr<Ring> ring_;                 // of mesh_, once the others are found
  std::set<std::uint64_t> asked_;              // requests to the store that wait for their answer
  std::uint64_t requests_ = 0;
  protocol::WeightPublication store_;
  Duration skew_{};
  Trained trained_;
  bool loaded_ = false;
  std::uint64_t loads_ = 0;
  std::optional<PolicyVersion> running_;
  std::function<void(std::optional<PolicyVersion>)> say_;  // the greeting that waits for the step
  std::optional<protocol::publication::FillSlot> fill_;  // ordered, not begun
  std::pair<std::uint64_t, PolicyVersion> memory_[protocol::WeightPublication::kSlots] = {{1, {}}, {1, {}}};
};

} // namespace troupe::sim
