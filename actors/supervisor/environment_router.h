/// @file
/// Calls of rollout workers to environment runners: a star through the head. When a runner dies, its open calls are answered with an error
/// at once; nobody waits on the dead.
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
  /// Sends replies to the worker that asked, if it is still there.
  using Reply = std::function<void(EnvironmentReplies)>;
  explicit EnvironmentRouter(Reply reply) : reply_(std::move(reply)) {}

  void runner_joined(const std::string& name, caf::actor runner);
  void runner_gone(const std::string& name);
  /// To a runner by episode, so that an episode stays where it was reset; refused when there is none.
  void ask(const EnvironmentCalls& calls);
  /// From a runner.
  void answered(EnvironmentReplies replies);
  void worker_gone(const std::string& worker);

 private:
  struct Runner {
    caf::actor actor;
  };
  struct Open {
    std::string runner;
    std::uint32_t incarnation = 0;
  };
  using CallKey = std::pair<std::string, std::uint64_t>; // worker, call

  Reply reply_;
  std::map<std::string, Runner> runners_;
  std::map<CallKey, Open> open_;
};

} // namespace troupe::actors
