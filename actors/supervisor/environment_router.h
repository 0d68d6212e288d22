/// @file
/// Calls of rollout workers to environment runners: a star through the head. A call survives the death of its runner: it goes to another one,
/// or waits for the replacement; the caller's own deadline bounds the wait.
#pragma once

#include <caf/actor.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "actors/messages/environment.h"

namespace troupe::actors {

class EnvironmentRouter {
 public:
  using Reply = std::function<void(EnvironmentReplies)>;                     ///< To the worker that asked, if it is still there.
  using Forward = std::function<void(const std::string&, EnvironmentCalls)>; ///< To a runner, by name.
  EnvironmentRouter(Reply reply, Forward forward) : reply_(std::move(reply)), forward_(std::move(forward)) {}

  void runner_joined(const std::string& name);
  void runner_gone(const std::string& name);
  void ask(const EnvironmentCalls& calls);
  /// From a runner. An answer to a call that was given to another runner meanwhile is dropped.
  void answered(EnvironmentReplies replies);
  void worker_gone(const std::string& worker);
  [[nodiscard]] std::size_t open() const { return open_.size(); }

 private:
  struct Open {
    std::string runner; // empty: waits for one
    std::uint32_t incarnation = 0;
    EnvironmentCall call;
  };
  using CallKey = std::pair<std::string, std::uint64_t>; // worker, call
  void dispatch(const std::vector<CallKey>& keys);

  Reply reply_;
  Forward forward_;
  std::vector<std::string> runners_; // sorted
  std::map<CallKey, Open> open_;
};

} // namespace troupe::actors
