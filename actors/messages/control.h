/// @file
/// Inside the supervisor's process: what the control socket, signals and timers tell its actors.
#pragma once

#include "actors/messages/inspect_base.h"

#include <caf/actor.hpp>

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
  bool preempted = false; ///< By whoever runs the machine (SIGTERM): exit code 75 says that it can go on elsewhere.
};
template <class Inspector>
bool inspect(Inspector& f, StopRun& x) {
  return f.object(x).fields(f.field("reason", x.reason), f.field("preempted", x.preempted));
}

/// The node agent's process on the head's machine ended while the run goes on.
struct AgentEnded {
  std::int32_t pid = 0;
  std::string how;
};
template <class Inspector>
bool inspect(Inspector& f, AgentEnded& x) {
  return f.object(x).fields(f.field("pid", x.pid), f.field("how", x.how));
}

/// A timer of a protocol core that fell due.
struct Tick {
  std::uint64_t timer = 0;
};
template <class Inspector>
bool inspect(Inspector& f, Tick& x) {
  return f.object(x).fields(f.field("timer", x.timer));
}

/// Inside the process of a worker or an agent: the way to the head, see runtime/head_link.h.
struct HeadIs {
  caf::actor head;
};
template <class Inspector>
bool inspect(Inspector& f, HeadIs& x) {
  return f.object(x).fields(f.field("head", x.head));
}
struct HeadFound {
  std::uint64_t term = 0;
};
template <class Inspector>
bool inspect(Inspector& f, HeadFound& x) {
  return f.object(x).fields(f.field("term", x.term));
}
/// The head of `term` has been away for the whole lease.
struct LeaseOver {
  std::uint64_t term = 0;
};
template <class Inspector>
bool inspect(Inspector& f, LeaseOver& x) {
  return f.object(x).fields(f.field("term", x.term));
}
struct HeadLost {};
template <class Inspector>
bool inspect(Inspector& f, HeadLost& x) {
  return f.object(x).fields();
}

/// Inside a worker's process: time for the next sign of life.
struct Beat {};
template <class Inspector>
bool inspect(Inspector& f, Beat& x) {
  return f.object(x).fields();
}

} // namespace troupe::actors
