/// @file
/// SIGINT and SIGTERM as calls, on a thread of their own.
#pragma once

#include <functional>
#include <thread>

#include "base/file.h"

namespace troupe::actors {

/// Call before any thread exists: the signals are blocked in this thread and in all that it starts.
void block_signals();

/// Calls `received` with SIGINT or SIGTERM, each time one comes, until it is destroyed.
class SignalThread {
 public:
  explicit SignalThread(std::function<void(int)> received);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  void run();
  std::function<void(int)> received_;
  FileDescriptor fd_;
  std::thread thread_;
};

} // namespace troupe::actors
