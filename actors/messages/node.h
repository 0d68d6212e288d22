/// @file
/// Supervisor <-> node agent: which worker processes run on a machine.
#pragma once

#include "actors/messages/inspect_base.h"

#include <string>
#include <vector>

namespace troupe::actors {

/// Another machine -> head: take me. Answered by NodeAdmitted; the agent says NodeHello after that.
struct JoinRun {
  std::string host;          ///< The machine's own name, for people.
  std::string address;       ///< Of the interface towards the head.
  std::int32_t pid = 0;
};
template <class Inspector>
bool inspect(Inspector& f, JoinRun& x) {
  return f.object(x).fields(f.field("host", x.host), f.field("address", x.address), f.field("pid", x.pid));
}

struct NodeAdmitted {
  bool ok = false;
  std::string reason;    ///< Why not.
  std::string node;      ///< "node2".
  std::string frame;     ///< The agent's start frame (runtime/frame.h). Its credential and folder are the joiner's own.
  std::string tokenizer; ///< Digest of the run's tokenizer.json.
};
template <class Inspector>
bool inspect(Inspector& f, NodeAdmitted& x) {
  return f.object(x).fields(f.field("ok", x.ok), f.field("reason", x.reason), f.field("node", x.node), f.field("frame", x.frame),
                            f.field("tokenizer", x.tokenizer));
}

/// Node agent -> head: its machine is to be left. Its workers drain; StopNode ends it.
struct LeaveRun {
  std::string node;
};
template <class Inspector>
bool inspect(Inspector& f, LeaveRun& x) {
  return f.object(x).fields(f.field("node", x.node));
}

/// Whoever found a head at a known address -> head. Answered by TermIs.
struct AskTerm {};
template <class Inspector>
bool inspect(Inspector& f, AskTerm& x) {
  return f.object(x).fields();
}
struct TermIs {
  std::uint64_t term = 0;
};
template <class Inspector>
bool inspect(Inspector& f, TermIs& x) {
  return f.object(x).fields(f.field("term", x.term));
}

/// A worker of a node: the newest incarnation of its name.
struct NodeChild {
  std::string name;
  std::uint32_t incarnation = 0;
  std::int32_t pid = 0; ///< 0: it has ended.
};
template <class Inspector>
bool inspect(Inspector& f, NodeChild& x) {
  return f.object(x).fields(f.field("name", x.name), f.field("incarnation", x.incarnation), f.field("pid", x.pid));
}

/// Node agent -> head, once it is connected. `term`: of the head that it belonged to so far.
struct NodeHello {
  std::string node; ///< "node1".
  std::int32_t pid = 0;
  std::string host;    ///< Of a machine that joined: its own name and address.
  std::string address;
  std::uint64_t term = 0;
  std::vector<NodeChild> children; ///< Every name it ever started.
};
template <class Inspector>
bool inspect(Inspector& f, NodeHello& x) {
  return f.object(x).fields(f.field("node", x.node), f.field("pid", x.pid), f.field("host", x.host), f.field("address", x.address),
                            f.field("term", x.term), f.field("children", x.children));
}

/// Head -> node agent: start a worker process. Answered by WorkerStarted or WorkerExited.
struct StartWorker {
  std::string name; ///< "rollout/1".
  std::uint32_t incarnation = 0;
  std::string frame;               ///< The worker's whole start frame (runtime/frame.h).
  bool torch = false;    ///< Which executable: `troupe-worker` or `troupe`.
  bool weights = false;  ///< Give it an empty memory file for weight slots on descriptor 4; it chooses the size.
  std::int32_t threads = 1;        ///< OMP_NUM_THREADS.
};
template <class Inspector>
bool inspect(Inspector& f, StartWorker& x) {
  return f.object(x).fields(f.field("name", x.name), f.field("incarnation", x.incarnation), f.field("frame", x.frame), f.field("torch", x.torch),
                            f.field("weights", x.weights), f.field("threads", x.threads));
}

/// Head -> node agent: SIGKILL, whatever the worker is doing. Answered by WorkerExited.
struct KillWorker {
  std::string name;
  std::uint32_t incarnation = 0;
};
template <class Inspector>
bool inspect(Inspector& f, KillWorker& x) {
  return f.object(x).fields(f.field("name", x.name), f.field("incarnation", x.incarnation));
}

/// Head -> node agent: kill what still runs and exit.
struct StopNode {
  std::string reason;
};
template <class Inspector>
bool inspect(Inspector& f, StopNode& x) {
  return f.object(x).fields(f.field("reason", x.reason));
}

/// Node agent -> head.
struct WorkerStarted {
  std::string name;
  std::uint32_t incarnation = 0;
  std::int32_t pid = 0;
};
template <class Inspector>
bool inspect(Inspector& f, WorkerStarted& x) {
  return f.object(x).fields(f.field("name", x.name), f.field("incarnation", x.incarnation), f.field("pid", x.pid));
}

/// What an agent reads of one of its workers.
struct WorkerReading {
  std::string name;
  std::uint32_t incarnation = 0;
  std::uint64_t moves = 0; ///< See runtime/progress.h.
  bool busy = false;
};
template <class Inspector>
bool inspect(Inspector& f, WorkerReading& x) {
  return f.object(x).fields(f.field("name", x.name), f.field("incarnation", x.incarnation), f.field("moves", x.moves), f.field("busy", x.busy));
}

/// A listening TCP socket of a process of a node.
struct NodeListener {
  std::string process; ///< "rollout/3", "node2".
  std::string address;
  std::uint16_t port = 0;
};
template <class Inspector>
bool inspect(Inspector& f, NodeListener& x) {
  return f.object(x).fields(f.field("process", x.process), f.field("address", x.address), f.field("port", x.port));
}

/// Node agent -> head, every second.
struct NodeReport {
  std::string node;
  std::vector<WorkerReading> workers;
  std::vector<NodeListener> listeners;
};
template <class Inspector>
bool inspect(Inspector& f, NodeReport& x) {
  return f.object(x).fields(f.field("node", x.node), f.field("workers", x.workers), f.field("listeners", x.listeners));
}

/// Agent of a machine that joined -> head: what a worker there has logged. The head's run folder holds all logs.
struct WorkerLog {
  std::string name;
  std::uint32_t incarnation = 0;
  std::uint64_t offset = 0; ///< Of the text in the log.
  std::string text;
};
template <class Inspector>
bool inspect(Inspector& f, WorkerLog& x) {
  return f.object(x).fields(f.field("name", x.name), f.field("incarnation", x.incarnation), f.field("offset", x.offset), f.field("text", x.text));
}

/// Node agent -> head: the process is gone (or could not be started), in words that name its log.
struct WorkerExited {
  std::string name;
  std::uint32_t incarnation = 0;
  std::int32_t code = 0;
  std::int32_t signal = 0;
  std::string how; ///< "killed by SIGKILL; log: runs/x/logs/rollout-1.0.log; last line: ...".
};
template <class Inspector>
bool inspect(Inspector& f, WorkerExited& x) {
  return f.object(x).fields(f.field("name", x.name), f.field("incarnation", x.incarnation), f.field("code", x.code), f.field("signal", x.signal),
                            f.field("how", x.how));
}

} // namespace troupe::actors
