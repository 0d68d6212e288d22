/// @file
/// Inside the supervisor's process: what the control socket, signals and timers tell its actors.
#pragma once

#include "actors/messages/inspect_base.h"

#include <string>

namespace troupe::actors {

/// One line of the control socket. Answered by ControlReply.
struct ControlRequest {
  std::string line; ///< JSON: {"command": "status", ...}.
};
template <class Inspector>
bool inspect(Inspector& f, ControlRequest& x) {
  return f.object(x).fields(f.field("line", x.line));
}

struct ControlReply {
  std::string line; ///< JSON: {"ok": true, ...} or {"ok": false, "error": "..."}.
};
template <class Inspector>
bool inspect(Inspector& f, ControlReply& x) {
  return f.object(x).fields(f.field("line", x.line));
}

/// First time: drain, save, exit. Second time: exit now.
struct StopRun {
  std::string reason;
};
template <class Inspector>
bool inspect(Inspector& f, StopRun& x) {
  return f.object(x).fields(f.field("reason", x.reason));
}

/// The node agent's process on the head's machine ended while the run goes on.
struct AgentEnded {
  std::string how;
};
template <class Inspector>
bool inspect(Inspector& f, AgentEnded& x) {
  return f.object(x).fields(f.field("how", x.how));
}

/// A timer of a protocol core that fell due.
struct Tick {
  std::uint64_t timer = 0;
};
template <class Inspector>
bool inspect(Inspector& f, Tick& x) {
  return f.object(x).fields(f.field("timer", x.timer));
}

/// Inside a worker's process: time for the next sign of life.
struct Beat {};
template <class Inspector>
bool inspect(Inspector& f, Beat& x) {
  return f.object(x).fields();
}

} // namespace troupe::actors
