#include "protocol/restart_policy.h"

#include <algorithm>

namespace troupe::protocol {

std::variant<RestartAt, Escalate> RestartPolicy::on_failure(Failure failure) {
  const TimePoint now = failure.at;
  while (!recent_.empty() && recent_.front().at + options_.window <= now) recent_.pop_front();
  recent_.push_back(std::move(failure));
  if (recent_.size() > options_.restarts_max) {
    std::string chain;
    for (const Failure& f : recent_) chain += (chain.empty() ? "" : "; ") + f.what + ": " + f.cause;
    recent_.pop_back();  // it is not restarted, so it does not count as a restart
    return Escalate{"more than " + std::to_string(options_.restarts_max) + " restarts within " +
                    format_duration(options_.window) + " (" + chain + ")"};
  }
  Duration pause = options_.backoff_first;
  for (std::size_t i = 1; i < recent_.size() && pause < options_.backoff_max; ++i) pause *= 2;
  return RestartAt{now + std::min(pause, options_.backoff_max), static_cast<std::uint32_t>(recent_.size())};
}

std::size_t RestartPolicy::in_window(TimePoint now) const {
  const auto recent = [&](const Failure& f) { return f.at + options_.window > now; };
  return static_cast<std::size_t>(std::count_if(recent_.begin(), recent_.end(), recent));
}

bool PoisonTracker::second_identical(const std::string& work, const std::string& cause) {
  const auto [it, is_new] = seen_.try_emplace(work);
  if (is_new) order_.push_back(work);
  const bool repeated = !it->second.insert(cause).second;
  if (order_.size() > kEntriesMax) {
    seen_.erase(order_.front());
    order_.pop_front();
  }
  return repeated;
}

void PoisonTracker::forget(const std::string& work) {
  if (seen_.erase(work) > 0) std::erase(order_, work);
}

} // namespace troupe::protocol
