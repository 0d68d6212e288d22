/// @file
/// The write-ahead log of control state: one JSON record a line with a checksum, fsynced before the record takes effect.
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
  struct Opened;
  /// Replays the log and opens it for appending. A torn last line (a crash in the middle of an append) is cut off; any other damage is an
  /// error. A missing file is an empty log. Errors: kCorrupt naming the line; as system_error.
  [[nodiscard]] static Result<Opened> open(const std::filesystem::path& path);

  /// Durable when it returns. A disk that is full is reported once on the log and counted: control goes on without the record.
  void append(const protocol::control::Record& record);

 private:
  ControlLog(FileDescriptor file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}
  FileDescriptor file_;
  std::filesystem::path path_;
  bool complained_ = false;
};

struct ControlLog::Opened {
  std::unique_ptr<ControlLog> log;
  protocol::control::State state;
};

} // namespace troupe::actors
