/// @file
/// The second process of benchmarks that need two: this program again, under a hidden name.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "actors/runtime/process.h"
#include "base/result.h"
#include "base/units.h"

namespace troupe::bench {

/// A temporary folder, removed with everything in it at the end.
class TemporaryFolder {
 public:
  /// Errors: as system_error.
  [[nodiscard]] static Result<TemporaryFolder> create();
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

/// Kills and reaps a child at the end of the scope.
class Child {
 public:
  explicit Child(actors::ChildProcess process) : process_(std::move(process)) {}
  Child(Child&& other) noexcept : process_(std::move(other.process_)) { other.process_.pid = -1; }
  Child& operator=(Child&& other) noexcept {
    std::swap(process_, other.process_);
    return *this;
  }
  ~Child();
  [[nodiscard]] pid_t pid() const { return process_.pid; }
  /// Errors: kTimeout; the child goes on then.
  [[nodiscard]] Result<actors::ExitStatus> wait(Duration limit);

 private:
  actors::ChildProcess process_;
};

/// A second process of this program that plays `role` and then serves until it is destroyed.
struct Helper {
  Child child;
  std::string says;  ///< The line it reported when it was ready.
};

/// Starts one in `folder` and waits for its line. Errors: as system_error; kUnavailable when it ended; kTimeout.
[[nodiscard]] Result<Helper> start_helper(std::string_view role, const std::filesystem::path& folder);

[[nodiscard]] bool is_helper(std::string_view role);
/// What main does in that process.
[[nodiscard]] int run_helper(std::string_view role, const std::filesystem::path& folder);
/// Called by a role when it serves: reports its line and sleeps until the parent kills it.
[[noreturn]] void serve_until_killed(const std::string& line);

// The roles, in the files of their benchmarks. They return only on an error.
Status serve_weights(const std::filesystem::path& folder);
Status serve_control(const std::filesystem::path& folder);

}  // namespace troupe::bench
