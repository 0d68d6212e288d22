/// @file
/// The rollout workers as the director sees them, and the choice of one for the next work. Deterministic: least
/// loaded, ties by index.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "protocol/types.h"

namespace troupe::protocol {

/// joining: pulls weights, not routable. serving. draining: finishes what it has. The dead are not kept.
enum class WorkerState : std::uint8_t { kJoining = 1, kServing = 2, kDraining = 3 };
[[nodiscard]] std::string_view to_string(WorkerState state);

struct PoolWorker {
  WorkerId id;
  WorkerState state = WorkerState::kJoining;
  bool suspect = false;
  bool released = false;               ///< Draining and told that it owns nothing any more.
  std::optional<PolicyVersion> holds;  ///< Weights it has loaded.
  std::optional<PolicyVersion> told;   ///< Version of the newest TellWorkerPull.
  bool pulling = false;                ///< Told, and not answered yet: newer versions wait.
  TimePoint pull_deadline{};           ///< When it becomes unfit unless it holds `told`.
  TimePoint retry_at{};                ///< Not told again before.
  TimePoint full_until{};              ///< Refused work for lack of room; not asked again before.
  bool in_round = false;               ///< The open pull round waits for it.
  bool spare = false;                  ///< Kept warm, gets no work until one that does is lost.
  bool unfit = false;                  ///< Reported unfit; never routable again.
  std::uint32_t load = 0;              ///< Samples assigned.
};

class WorkerPool {
 public:
  explicit WorkerPool(std::uint32_t workers_max) : workers_max_(workers_max) {}

  /// Absent when the pool is full, or a newer incarnation of the same worker is known.
  PoolWorker* add(WorkerId id);
  void remove(WorkerId id) { workers_.erase(id); }
  [[nodiscard]] PoolWorker* find(WorkerId id);
  [[nodiscard]] const PoolWorker* find(WorkerId id) const;

  /// It can be given work at all; that it waits as a spare or for weights aside.
  [[nodiscard]] static bool fit(const PoolWorker& worker);
  [[nodiscard]] static bool routable(const PoolWorker& worker, std::optional<PolicyVersion> served);
  /// The routable worker with the smallest load that has room for `samples`; `avoid` only when there is no other.
  /// A worker without any load takes a group that is larger than the limit.
  [[nodiscard]] PoolWorker* pick(std::optional<PolicyVersion> served, std::uint32_t samples, std::uint32_t samples_max,
                                 std::optional<WorkerId> avoid, TimePoint now);

  [[nodiscard]] std::map<WorkerId, PoolWorker>& all() { return workers_; }
  [[nodiscard]] const std::map<WorkerId, PoolWorker>& all() const { return workers_; }

 private:
  std::uint32_t workers_max_;
  std::map<WorkerId, PoolWorker> workers_;
};

} // namespace troupe::protocol
