/// @file
/// The unix socket of a supervisor: one JSON object a line in, one out. Only this user's processes are heard.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/file.h"
#include "base/result.h"

namespace troupe::actors {

class ControlServer {
 public:
  /// Answers one request line. Called on the server's thread; blocks it.
  using Answer = std::function<std::string(const std::string& line)>;

  /// Listens on `socket` (mode 0600), replacing a stale one. Errors: as system_error; kInvalidArgument for a path that is too long.
  [[nodiscard]] static Result<std::unique_ptr<ControlServer>> start(const std::filesystem::path& socket, Answer answer);
  /// Closes and removes the socket.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

 private:
  ControlServer(FileDescriptor listener, FileDescriptor wake, std::filesystem::path socket, Answer answer);
  void run();

  FileDescriptor listener_, wake_;
  std::filesystem::path socket_;
  Answer answer_;
  std::thread thread_;
};

/// Sends one line to a supervisor and returns its answer. Errors: kUnavailable when nobody listens; kTimeout.
[[nodiscard]] Result<std::string> ask_supervisor(const std::filesystem::path& socket, const std::string& line, int timeout_ms = 10000);

} // namespace troupe::actors
