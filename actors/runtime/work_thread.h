/// @file
/// The one thread on which a rank or a rollout worker computes, with a bounded queue of commands. Its control actor stays free to answer.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "actors/runtime/progress.h"

namespace troupe::actors {

/// Runs commands in order. Between commands, `idle` is called as long as it returns true (there is more of its own work to do).
class WorkThread {
 public:
  using Command = std::function<void()>;

  /// `queue_max` bounds what waits; `idle` may be empty. `progress`, when given, is kept up to date and outlives the thread.
  WorkThread(std::size_t queue_max, std::function<bool()> idle, WorkProgress* progress = nullptr);
  /// Finishes the command that runs, drops the rest, joins.
  ~WorkThread();
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  /// False when the queue is full: the sender holds more than it was allowed to.
  [[nodiscard]] bool post(Command command);

 private:
  void run();

  const std::size_t queue_max_;
  std::function<bool()> idle_;
  WorkProgress* progress_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Command> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

} // namespace troupe::actors
