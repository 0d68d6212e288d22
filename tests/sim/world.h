/// @file
/// One thread, virtual time, lossy links: everything of the simulator that knows no protocol.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/units.h"

namespace troupe::sim {

/// An invariant does not hold.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Violation unless the condition holds.
inline void require(bool condition, const std::string& what) {
  if (!condition) throw Violation(what);
}

/// What becomes of one message: it is lost, comes twice, or late (up to two seconds instead of up to 20 ms: reorders).
enum class MessageFault : std::uint8_t { kLost, kTwice, kLate };

/// Virtual time and the messages under way. All randomness of behaviour comes from `rng`; faults are given, by message number.
class World {
 public:
  explicit World(std::uint64_t seed) : rng(seed, RngStream::kTest) {}

  [[nodiscard]] TimePoint now() const { return now_; }
  void after(Duration delay, std::function<void()> action);
  /// Over a link with faults: lost, doubled, late or all of it. Order is not kept.
  void send(std::function<void()> action);
  /// Over a link that keeps everything and its order between the same two ends (ends = `channel`).
  void send_reliably(std::uint64_t channel, std::function<void()> action);
  /// Runs the next action. False when nothing is left.
  bool step();

  void log(const std::string& line);
  /// The last lines, oldest first.
  [[nodiscard]] std::string history() const;

  [[nodiscard]] bool chance(double probability) { return rng.uniform() < probability; }
  [[nodiscard]] std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + rng.below(high - low + 1); }
  [[nodiscard]] Duration millis(std::uint64_t low, std::uint64_t high) {
    return std::chrono::milliseconds(between(low, high));
  }

  Rng rng;
  std::multimap<std::uint64_t, MessageFault> message_faults;  ///< By number of the message.
  std::uint64_t messages = 0;                                 ///< Sent so far.
  std::uint64_t events = 0;

 private:
  struct Entry {
    TimePoint at;
    std::uint64_t order;
    std::function<void()> action;
    bool operator>(const Entry& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  TimePoint now_ = TimePoint{} + std::chrono::hours(1);
  std::uint64_t order_ = 0;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::map<std::uint64_t, TimePoint> channels_;
  std::deque<std::string> lines_;
};

} // namespace troupe::sim
