/// @file
/// Any worker <-> head: joining, leaving, failing.
#pragma once

#include "actors/messages/inspect_base.h"

#include <string>
#include <vector>

namespace troupe::actors {

/// Worker -> head, first message, together with the worker's own handle; again to a head that follows a lost one. `term`: of the head that it
/// belonged to so far. Refused (FencedOff) when the head does not know of it.
struct Hello {
  std::string name;
  std::string role;
  std::uint32_t incarnation = 0;
  std::int32_t pid = 0;
  std::uint64_t term = 0;
  bool holds = false;    ///< Rank, rollout: it has the weights of `version`.
  PolicyVersion version;
};
template <class Inspector>
bool inspect(Inspector& f, Hello& x) {
  return f.object(x).fields(f.field("name", x.name), f.field("role", x.role), f.field("incarnation", x.incarnation), f.field("pid", x.pid),
                            f.field("term", x.term), f.field("holds", x.holds), f.field("version", x.version));
}

/// Worker -> head, every heartbeat: the control actor answers.
struct Alive {
  std::string name;
  std::uint32_t incarnation = 0;
};
template <class Inspector>
bool inspect(Inspector& f, Alive& x) {
  return f.object(x).fields(f.field("name", x.name), f.field("incarnation", x.incarnation));
}

/// Head -> worker: you are not, or no longer, part of this run. The worker exits.
struct FencedOff {
  std::string reason;
};
template <class Inspector>
bool inspect(Inspector& f, FencedOff& x) {
  return f.object(x).fields(f.field("reason", x.reason));
}

/// Head -> worker: end now; the process exits with code 0.
struct StopWorker {
  std::string reason;
};
template <class Inspector>
bool inspect(Inspector& f, StopWorker& x) {
  return f.object(x).fields(f.field("reason", x.reason));
}

/// Worker -> head: I cannot go on; the process exits after this.
struct WorkerFailed {
  std::string name;
  std::uint32_t incarnation = 0;
  Error error;
};
template <class Inspector>
bool inspect(Inspector& f, WorkerFailed& x) {
  return f.object(x).fields(f.field("name", x.name), f.field("incarnation", x.incarnation), f.field("error", x.error));
}

/// One measured value.
struct MetricValue {
  std::string name;
  double value = 0;
};
template <class Inspector>
bool inspect(Inspector& f, MetricValue& x) {
  return f.object(x).fields(f.field("name", x.name), f.field("value", x.value));
}

} // namespace troupe::actors
