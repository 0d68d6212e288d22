#include "actors/supervisor/environment_router.h"

#include <algorithm>
#include <utility>

namespace troupe::actors {

void EnvironmentRouter::runner_joined(const std::string& name) {
  if (std::find(runners_.begin(), runners_.end(), name) == runners_.end()) runners_.push_back(name);
  std::sort(runners_.begin(), runners_.end());
  std::vector<CallKey> waiting;
  for (const auto& [key, open] : open_)
    if (open.runner.empty()) waiting.push_back(key);
  dispatch(waiting);
}

void EnvironmentRouter::runner_gone(const std::string& name) {
  std::erase(runners_, name);
  std::vector<CallKey> again;
  for (auto& [key, open] : open_)
    if (open.runner == name) { // a call stands for itself: it has the same answer elsewhere
      open.runner.clear();
      again.push_back(key);
    }
  dispatch(again);
}

void EnvironmentRouter::ask(const EnvironmentCalls& calls) {
  std::vector<CallKey> keys;
  for (const EnvironmentCall& call : calls.calls) {
    const CallKey key{calls.worker, call.call};
    open_[key] = {"", calls.incarnation, call};
    keys.push_back(key);
  }
  dispatch(keys);
}

// By episode, so that an episode stays where it was reset.
void EnvironmentRouter::dispatch(const std::vector<CallKey>& keys) {
  if (runners_.empty()) return; // they wait; each caller has a deadline of its own
  std::map<std::pair<std::string, CallKey>, EnvironmentCalls> parts; // by runner, worker and incarnation
  for (const CallKey& key : keys) {
    Open& open = open_.at(key);
    open.runner = runners_[open.call.episode % runners_.size()];
    EnvironmentCalls& part = parts[{open.runner, {key.first, open.incarnation}}];
    part.worker = key.first;
    part.incarnation = open.incarnation;
    part.calls.push_back(open.call);
  }
  for (auto& [key, part] : parts) forward_(key.first, std::move(part));
}

void EnvironmentRouter::answered(EnvironmentReplies replies) {
  std::erase_if(replies.replies, [&](const EnvironmentReply& reply) { return open_.erase({replies.worker, reply.call}) == 0; });
  if (!replies.replies.empty()) reply_(std::move(replies));
}

void EnvironmentRouter::worker_gone(const std::string& worker) {
  std::erase_if(open_, [&](const auto& entry) { return entry.first.first == worker; });
}

} // namespace troupe::actors
