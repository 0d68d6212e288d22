/// @file
/// The write-ahead log of control state: one JSON record a line with a checksum, on disk before the record takes effect.
#pragma once

#include <filesystem>
#include <memory>

#include "base/file.h"
#include "base/result.h"
#include "protocol/control_log.h"

namespace troupe::actors {

/// `<run.dir>/control.log`. One writer.
class ControlLog {
 public:
  static constexpr std::size_t kCompactBytes = std::size_t{4} << 20;
  struct Opened;
  /// Replays the log and opens it for appending. A torn last line (a crash in the middle of an append) is cut off; any other damage is an
  /// error. A missing file is an empty log. Errors: kCorrupt naming the line; as system_error.
  [[nodiscard]] static Result<Opened> open(const std::filesystem::path& path);

  /// What the log says, without opening it for writing. Errors: as `open`.
  [[nodiscard]] static Result<protocol::control::State> read(const std::filesystem::path& path);

  /// Survives this process when it returns, and the machine if protocol::must_be_durable says so. From time to time the log is replaced by
  /// the fewest records that say the same. A disk that is full is reported once on the log: control goes on without the record, and a
  /// restart goes back further than it had to.
  void append(const protocol::control::Record& record);
  /// For what must not take effect unless it is remembered: a term or an epoch that is used twice fences nobody off.
  /// Errors: as system_error, kResourceExhausted on a full disk; nothing of the record is in the log.
  [[nodiscard]] Status append_or_fail(const protocol::control::Record& record);

 private:
  ControlLog(FileDescriptor file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}
  FileDescriptor file_;
  std::filesystem::path path_;
  Status write(const protocol::control::Record& record);
  void compact();

  protocol::control::State state_;
  std::size_t bytes_ = 0, compact_at_ = kCompactBytes;
  bool complained_ = false;
};

struct ControlLog::Opened {
  std::unique_ptr<ControlLog> log;
  protocol::control::State state;
};

} // namespace troupe::actors
