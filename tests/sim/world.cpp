#include "sim/world.h"

#include <algorithm>
#include <utility>

namespace troupe::sim {

namespace {
constexpr std::size_t kLinesKept = 80;
}

void World::after(Duration delay, std::function<void()> action) {
  queue_.push({now_ + delay, order_++, std::move(action)});
}

void World::send(std::function<void()> action) {
  if (chance(faults.loss)) return;
  const auto delay = [this] { return chance(faults.long_delay) ? millis(20, 2000) : millis(1, 20); };
  if (chance(faults.duplication)) after(delay(), action);
  after(delay(), std::move(action));
}

void World::send_reliably(std::uint64_t channel, std::function<void()> action) {
  TimePoint& last = channels_[channel];
  last = std::max(last, now_ + millis(1, 20));
  queue_.push({last, order_++, std::move(action)});
}

bool World::step() {
  if (queue_.empty()) return false;
  Entry next = queue_.top();
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
