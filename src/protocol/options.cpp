#include "protocol/options.h"

#include <algorithm>
#include <cmath>

namespace troupe::protocol {

std::uint64_t buffer_groups(const RolloutPlan& plan) {
  return (std::uint64_t{plan.staleness} + 1) * plan.prompts_per_step;
}

std::uint64_t window_groups(const RolloutPlan& plan) {
  if (plan.staleness == 0) return 1;
  const double groups = std::floor(plan.window_fraction * static_cast<double>(buffer_groups(plan)));
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::max(groups, 0.0)));
}

std::uint64_t worst_age(const RolloutPlan& plan) {
  const std::uint64_t ahead = window_groups(plan) - 1;
  return plan.staleness + (ahead + plan.prompts_per_step - 1) / plan.prompts_per_step;
}

std::uint64_t age_bound(const RolloutPlan& plan) { return plan.max_age ? *plan.max_age : worst_age(plan); }

} // namespace troupe::protocol
