/// @file
/// SIGINT and SIGTERM as messages.
#pragma once

#include <caf/actor.hpp>

#include <thread>

#include "base/file.h"

namespace troupe::actors {

/// Call before any thread exists: the signals are blocked in this thread and in all that it starts.
void block_signals();

/// Sends StopRun to `to` for each SIGINT and SIGTERM, until it is destroyed.
class SignalThread {
 public:
  explicit SignalThread(caf::actor to);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  void run();
  caf::actor to_;
  FileDescriptor fd_;
  std::thread thread_;
};

} // namespace troupe::actors
