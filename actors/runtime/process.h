/// @file
/// Starting and watching child processes.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace troupe::actors {

/// What a child process is started with.
struct ProcessSpec {
  int executable = -1;               ///< Opened before, so that a rebuild cannot mix builds; executed through its descriptor.
  std::vector<std::string> argv;     ///< argv[0] included.
  std::vector<std::pair<int, int>> descriptors; ///< (ours, the child's number); everything else is closed on exec.
  std::filesystem::path output;      ///< stdout and stderr are appended here; empty: inherited.
  bool outlives = false;             ///< Goes on when this process dies.
  bool new_session = true;           ///< A session of its own, so that a terminal's Ctrl-C does not reach it.
};

/// How a process ended.
struct ExitStatus {
  int code = 0;   ///< Exit code, when `signal` is 0.
  int signal = 0; ///< The signal that killed it, or 0.
};
/// "exit code 3", "killed by SIGKILL".
[[nodiscard]] std::string to_string(ExitStatus status);

/// Starts a child that dies with the calling thread's process (parent-death signal). The caller must be a thread that lives as long as
/// the process: Linux sends that signal when the creating thread ends. Returns pid and pidfd. Errors: as system_error.
struct ChildProcess {
  pid_t pid = -1;
  FileDescriptor pidfd;
};
[[nodiscard]] Result<ChildProcess> start_process(const ProcessSpec& spec);

/// Opens this program's own executable for `ProcessSpec::executable`.
[[nodiscard]] Result<FileDescriptor> open_executable(const std::filesystem::path& path);

/// A thread that starts children (so that their parent-death signal is tied to it) and reports each exit once.
class ProcessKeeper {
 public:
  using OnExit = std::function<void(pid_t, ExitStatus)>;
  /// `on_exit` runs on the keeper's thread.
  explicit ProcessKeeper(OnExit on_exit);
  /// Kills what is still alive with SIGKILL and reaps it.
  ~ProcessKeeper();
  ProcessKeeper(const ProcessKeeper&) = delete;
  ProcessKeeper& operator=(const ProcessKeeper&) = delete;

  [[nodiscard]] Result<pid_t> start(ProcessSpec spec);
  /// Sends a signal to a child that was not reaped yet; false when there is none of that pid.
  bool signal(pid_t pid, int signal_number);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Milliseconds since boot at which a process started (field 22 of /proc/PID/stat, in clock ticks); 0 when there is no such process.
/// With the pid it identifies a process for good.
[[nodiscard]] std::uint64_t process_start_ticks(pid_t pid);

} // namespace troupe::actors
