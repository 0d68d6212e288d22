/// @file
/// A child process that answers one line for each line it is sent, kept on a short lead: own process group, deadlines, output caps,
/// stderr drained to a bounded tail, killed and reaped on every failure.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "base/units.h"

namespace troupe::rl {

struct LineProcessOptions {
  std::vector<std::string> command; ///< Looked up in PATH; no shell.
  std::string folder;               ///< Working folder; empty: this process's.
  Bytes line_limit{1 << 20};        ///< Longest answer.
  Bytes stderr_tail{16 << 10};      ///< Last bytes of stderr that are kept.
};

/// Owns the child; the destructor kills and reaps it. Used from one thread, which must outlive the child (the kernel kills the child
/// when the thread that started it ends).
class LineProcess {
 public:
  /// Errors: kUnavailable naming the program and why it could not be started.
  [[nodiscard]] static Result<LineProcess> start(const LineProcessOptions& options);
  LineProcess(LineProcess&&) noexcept;
  LineProcess& operator=(LineProcess&&) noexcept;
  ~LineProcess();

  /// Sends `line` and a newline, waits for one line. On any error the whole process group is dead and reaped.
  /// Errors: kTimeout; kResourceExhausted for an answer beyond the limit; kUnavailable when it ended, with exit status and stderr tail.
  [[nodiscard]] Result<std::string> call(std::string_view line, Duration deadline);

  [[nodiscard]] bool running() const { return pid_ > 0; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// The last bytes of stderr, line breaks as " | ".
  [[nodiscard]] std::string stderr_tail() const;
  /// Kills the process group and reaps the child. "exit status 3", "killed by signal 9".
  std::string stop();

 private:
  explicit LineProcess(const LineProcessOptions& options) : options_(options) {}
  void drain_stderr();
  LineProcessOptions options_;
  pid_t pid_ = -1;
  FileDescriptor stdin_, stdout_, stderr_;
  std::string pending_; ///< Bytes of stdout after the last line.
  std::string tail_;
};

} // namespace troupe::rl
