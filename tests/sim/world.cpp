#include "sim/world.h"

#include <algorithm>
#include <utility>

namespace troupe::sim {

namespace {
constexpr std::size_t kLinesKept = 200;
}

void World::after(Duration delay, std::function<void()> action) {
  queue_.push({now_ + std::max(delay, Duration{0}), order_++, std::move(action)});
}

void World::send(std::function<void()> action) {
  // A fault draws nothing from `rng`: without it everything else stays as it was, so that a list of faults can be taken apart.
  const std::uint64_t number = messages++;
  const Duration delay = millis(1, 20);
  const auto odd = [number](std::uint64_t most) { return std::chrono::milliseconds(20 + mix64(number, 3) % most); };
  bool twice = false, late = false;
  const auto [begin, end] = message_faults.equal_range(number);
  for (auto fault = begin; fault != end; ++fault) {
    if (fault->second == MessageFault::kLost) return;
    twice = twice || fault->second == MessageFault::kTwice;
    late = late || fault->second == MessageFault::kLate;
  }
  if (twice) after(odd(500), action);
  after(late ? odd(2000) : delay, std::move(action));
}

void World::send_reliably(std::uint64_t channel, std::function<void()> action) {
  TimePoint& last = channels_[channel];
  last = std::max(last, now_ + millis(1, 20));
  queue_.push({last, order_++, std::move(action)});
}

bool World::step() {
  if (queue_.empty()) return false;
  Entry next = std::move(const_cast<Entry&>(queue_.top()));  // its order stays, which is all that the queue looks at
  queue_.pop();
  now_ = next.at;
  ++events;
  next.action();
  return true;
}

void World::log(const std::string& line) {
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now_.time_since_epoch() - std::chrono::hours(1)).count();
  lines_.push_back(std::to_string(ms) + " ms  " + line);
  if (lines_.size() > kLinesKept) lines_.pop_front();
}

std::string World::history() const {
  std::string text;
  for (const std::string& line : lines_) text += line + "\n";
  return text;
}

} // namespace troupe::sim
