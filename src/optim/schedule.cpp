#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace troupe::optim {
namespace {

std::string number(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string_view name_of(Decay decay) {
  return decay == Decay::kConstant ? "constant" : decay == Decay::kLinear ? "linear" : "cosine";
}

} // namespace

Status validate(const ScheduleOptions& o) {
  if (o.warmup_steps < 0)
    return fail(ErrorCode::kInvalidConfig, "optim.warmup_steps = " + std::to_string(o.warmup_steps) + " must not be negative");
  if (!(o.min_ratio >= 0 && o.min_ratio <= 1))
    return fail(ErrorCode::kInvalidConfig, "optim.min_ratio = " + number(o.min_ratio) + " must be in 0..1");
  if (o.decay == Decay::kConstant) return {};
  if (o.total_steps < 1)
    return fail(ErrorCode::kInvalidConfig, "optim.schedule = " + std::string(name_of(o.decay)) +
                                               " needs optim.total_steps, the step at which it ends");
  if (o.warmup_steps >= o.total_steps)
    return fail(ErrorCode::kInvalidConfig, "optim.warmup_steps = " + std::to_string(o.warmup_steps) +
                                               " leaves no step for the decay: total_steps is " + std::to_string(o.total_steps));
  return {};
}

double schedule_factor(const ScheduleOptions& o, std::int64_t step) {
  if (step < o.warmup_steps) return static_cast<double>(step + 1) / static_cast<double>(o.warmup_steps);
  if (o.decay == Decay::kConstant) return 1;
  const double p = std::clamp(static_cast<double>(step + 1 - o.warmup_steps) / static_cast<double>(o.total_steps - o.warmup_steps), 0.0, 1.0);
  const double fall = o.decay == Decay::kLinear ? 1 - p : 0.5 * (1 + std::cos(std::numbers::pi * p));
  return o.min_ratio + (1 - o.min_ratio) * fall;
}

Status check_resume(const ScheduleOptions& saved, const ScheduleOptions& now, bool allow_change) {
  if (allow_change || saved == now) return {};
  std::string what;
  const auto differs = [&](std::string_view field, const std::string& before, const std::string& after) {
    if (before != after) what += (what.empty() ? "" : ", ") + std::string(field) + " " + before + " -> " + after;
  };
  differs("decay", std::string(name_of(saved.decay)), std::string(name_of(now.decay)));
  differs("warmup_steps", std::to_string(saved.warmup_steps), std::to_string(now.warmup_steps));
  differs("total_steps", std::to_string(saved.total_steps), std::to_string(now.total_steps));
  differs("min_ratio", number(saved.min_ratio), number(now.min_ratio));
  return fail(ErrorCode::kInvalidConfig, "the learning-rate schedule differs from the one of the checkpoint (" + what +
                                             "), which bends the curve in the middle: restore it, or allow the change explicitly");
}

} // namespace troupe::optim
