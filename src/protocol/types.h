/// @file
/// The words all protocol cores share: who a worker is, and how a core asks to be woken.
///
/// A core is a pure state machine: `std::vector<Effect> handle(const Event&, TimePoint now)`. It has no clock, no
/// I/O and no randomness. The host (an actor, or the simulator) turns messages into events and performs the effects
/// in the order given. A core has one timer: the newest `ArmTimer` replaces the one before, and the host answers with
/// a `Wake` event at that time. An early, late or doubled `Wake` is harmless.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/log.h"
#include "base/result.h"
#include "base/units.h"

namespace troupe::protocol {

/// What a worker process does. Written into logs and files: append, never renumber.
enum class Role : std::uint8_t { kRank = 1, kRollout = 2, kEnvironment = 3, kCheckpointWriter = 4 };

/// "rank", "rollout", "environment", "checkpoint_writer".
[[nodiscard]] std::string_view to_string(Role role);
/// Errors: kInvalidArgument naming the roles there are.
[[nodiscard]] Result<Role> parse_role(std::string_view text);

/// One incarnation of one worker process. A replacement has the same role and index and a higher incarnation,
/// so that messages of the dead one are recognised.
struct WorkerId {
  Role role = Role::kRollout;
  std::uint32_t index = 0;
  std::uint32_t incarnation = 0;
  friend auto operator<=>(const WorkerId&, const WorkerId&) = default;
};

/// "rollout/3": the name users see.
[[nodiscard]] std::string worker_name(WorkerId worker);
/// "rollout/3.2": name and incarnation, as in the log file's name.
[[nodiscard]] std::string to_string(WorkerId worker);

/// A machine with a node agent, numbered from 1 in the order of joining. Printed "node2".
struct NodeId {
  std::uint32_t number = 0;
  friend auto operator<=>(const NodeId&, const NodeId&) = default;
};
[[nodiscard]] std::string to_string(NodeId node);

/// Effect of every core: send `Wake` at `at`. Replaces the timer this core armed before.
struct ArmTimer {
  TimePoint at;
};

/// Event of every core: the armed time has come.
struct Wake {};

/// Effect of every core: a line for the log of the host.
struct Note {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};

/// Why a run ended. "done", "stopped", "failed" in summary.json.
enum class RunExit : std::uint8_t { kDone = 1, kStopped = 2, kFailed = 3 };
[[nodiscard]] std::string_view to_string(RunExit exit);

} // namespace troupe::protocol
