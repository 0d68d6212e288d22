/// @file
/// How often something may be restarted, how long to wait before, and when to give up with the whole story.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "protocol/options.h"

namespace troupe::protocol {

/// One failure, as the host saw it.
struct Failure {
  std::string what;   ///< "rollout/3.2"
  std::string cause;  ///< "killed by signal 9"
  TimePoint at;
};

/// Restart, not before `at`.
struct RestartAt {
  TimePoint at;
  std::uint32_t count = 0;  ///< Restarts in the window, this one included.
};
/// The intensity is used up: hand it to the level above.
struct Escalate {
  std::string reason;  ///< One sentence: limit, window and the chain of causes, oldest first.
};

/// Restart intensity with exponential back-off. At most `restarts_max` restarts in any `window`.
class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartOptions& options) : options_(options) {}
  [[nodiscard]] std::variant<RestartAt, Escalate> on_failure(Failure failure);
  [[nodiscard]] std::size_t in_window(TimePoint now) const;

 private:
  RestartOptions options_;
  std::deque<Failure> recent_;  // restarted within the window; at most restarts_max
};

/// Recognises poison: the same work failing twice for the same cause is not tried the same way again.
class PoisonTracker {
 public:
  static constexpr std::size_t kEntriesMax = 4096;
  /// True from the second identical (work, cause) on. Beyond kEntriesMax the oldest entries are forgotten.
  bool second_identical(const std::string& work, const std::string& cause);
  void forget(const std::string& work);  ///< The work succeeded.

 private:
  std::map<std::string, std::set<std::string>> seen_;
  std::deque<std::string> order_;
};

} // namespace troupe::protocol
