/// @file
/// A whole `troupe run` in processes of its own, watched from outside as a script would.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "bench/helper.h"

namespace troupe::bench {

class LiveRun {
 public:
  /// Starts `troupe run CONFIG --set ...` with a run folder that is removed at the end. `config` is below the source
  /// folder. Errors: as system_error.
  [[nodiscard]] static Result<LiveRun> start(const std::string& config, const std::vector<std::string>& sets);

  /// Kills the supervisor with SIGKILL and starts another on the same folder. Errors: as `start`.
  [[nodiscard]] Status replace_supervisor();

  [[nodiscard]] std::filesystem::path folder() const { return folder_.path() / "run"; }
  /// Since the process was started.
  [[nodiscard]] double seconds() const { return troupe::seconds(std::chrono::steady_clock::now() - start_); }

  /// Waits for the end. Errors: kTimeout; kUnavailable with the run's last words when it failed.
  [[nodiscard]] Status finish(Duration limit);
  /// Waits until `condition`, asking every `pause`. Errors: kTimeout; kUnavailable when the run ends before.
  [[nodiscard]] Status wait_until(const std::string& what, Duration limit, const std::function<bool()>& condition,
                                  Duration pause = std::chrono::milliseconds(5));
  /// One request to the supervisor, such as {"command":"actors"}. Errors: kUnavailable; kInvalidArgument with its
  /// words.
  [[nodiscard]] Result<nlohmann::json> ask(const nlohmann::json& request) const;
  /// A line of `troupe actors --json`; null when there is no such actor.
  [[nodiscard]] nlohmann::json actor(const std::string& name) const;
  /// Steps done in the rl stage; 0 before it.
  [[nodiscard]] std::uint64_t rl_step() const;
  /// The lines of metrics.jsonl or events.jsonl so far.
  [[nodiscard]] std::vector<nlohmann::json> records(std::string_view file) const;
  [[nodiscard]] Result<nlohmann::json> summary() const;

 private:
  LiveRun(TemporaryFolder folder, Child child) : folder_(std::move(folder)), child_(std::move(child)) {}
  [[nodiscard]] std::string last_words() const;

  TemporaryFolder folder_;
  Child child_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The folder of this program, where troupe and troupe-worker are too.
[[nodiscard]] std::filesystem::path program_folder();

}  // namespace troupe::bench
