/// @file
/// Rollout worker <-> (head's router) <-> environment runner. Calls travel in batches: one message for all that is ready.
#pragma once

#include "actors/messages/inspect_base.h"
#include "data/message.h"

#include <string>
#include <vector>

namespace troupe::actors {

/// One call: the episode after these replies of the policy, all of them from the start. Without a reply: how the episode begins. A call
/// stands for itself: a runner that does not hold the episode at the reply before the last plays it again from the start, so a call may go to
/// any runner, and again.
struct EnvironmentCall {
  std::uint64_t call = 0;    ///< Chosen by the caller, echoed.
  std::uint64_t episode = 0; ///< Unique within the caller's incarnation.
  bool eval = false;         ///< Which split `problem` counts in.
  std::uint64_t problem = 0;
  std::vector<data::Message> replies;
};
template <class Inspector>
bool inspect(Inspector& f, EnvironmentCall& x) {
  return f.object(x).fields(f.field("call", x.call), f.field("episode", x.episode), f.field("eval", x.eval), f.field("problem", x.problem),
                            f.field("replies", x.replies));
}

/// What the task answered to the last reply (its reward, the messages that follow), or the conversation an episode begins with.
struct EnvironmentReply {
  std::uint64_t call = 0;
  bool ok = false;
  Error error;
  std::vector<data::Message> messages;
  std::string tools; ///< Of an episode that begins: rl::Opening::tools.
  double reward = 0;
  bool done = false;
  bool answered = true;
};
template <class Inspector>
bool inspect(Inspector& f, EnvironmentReply& x) {
  return f.object(x).fields(f.field("call", x.call), f.field("ok", x.ok), f.field("error", x.error), f.field("messages", x.messages), f.field("tools", x.tools),
                            f.field("reward", x.reward), f.field("done", x.done), f.field("answered", x.answered));
}

struct EnvironmentCalls {
  std::string worker; ///< Who asks.
  std::uint32_t incarnation = 0;
  std::vector<EnvironmentCall> calls;
};
template <class Inspector>
bool inspect(Inspector& f, EnvironmentCalls& x) {
  return f.object(x).fields(f.field("worker", x.worker), f.field("incarnation", x.incarnation), f.field("calls", x.calls));
}

struct EnvironmentReplies {
  std::string worker; ///< Who asked.
  std::uint32_t incarnation = 0;
  std::vector<EnvironmentReply> replies;
};
template <class Inspector>
bool inspect(Inspector& f, EnvironmentReplies& x) {
  return f.object(x).fields(f.field("worker", x.worker), f.field("incarnation", x.incarnation), f.field("replies", x.replies));
}

} // namespace troupe::actors
