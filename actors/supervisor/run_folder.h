/// @file
/// The folder of a run, and where its supervisor can be reached.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace troupe::actors {

/// What `<run.dir>/control.json` says.
struct ControlPoint {
  std::string run_id;
  std::string run_name;
  std::filesystem::path folder; ///< run.dir
  std::filesystem::path socket;
  pid_t pid = 0;
  std::uint64_t start_ticks = 0; ///< Of the supervisor's process: with the pid it cannot be mistaken for another.
};

/// Whether the supervisor it names is alive.
[[nodiscard]] bool is_live(const ControlPoint& point);
/// Errors: kNotFound, kCorrupt.
[[nodiscard]] Result<ControlPoint> read_control_point(const std::filesystem::path& folder);

/// A run folder held by this process: locked against a second supervisor for as long as it lives.
class RunFolder {
 public:
  /// A new run: creates the folder with run.json. Errors: kAlreadyExists when it holds a run.json, with a hint; as system_error.
  [[nodiscard]] static Result<RunFolder> create(const std::filesystem::path& folder, const std::string& run_json);
  /// A run to go on with. Errors: kNotFound when there is no run.json; kUnavailable when its supervisor is alive.
  [[nodiscard]] static Result<RunFolder> reopen(const std::filesystem::path& folder);

  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }

 private:
  RunFolder(std::filesystem::path folder, FileDescriptor lock) : folder_(std::move(folder)), lock_(std::move(lock)) {}
  std::filesystem::path folder_;
  FileDescriptor lock_;
};

/// The 0700 folder for a run's socket: $XDG_RUNTIME_DIR/troupe/<run id>, else below the system's temporary directory.
[[nodiscard]] Result<std::filesystem::path> socket_folder(const std::string& run_id);
[[nodiscard]] Status write_control_point(const ControlPoint& point);

/// Live runs of this user, found through the socket folders; stale ones are passed over.
[[nodiscard]] std::vector<ControlPoint> live_runs();

} // namespace troupe::actors
