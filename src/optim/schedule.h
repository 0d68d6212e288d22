/// @file
/// Learning-rate schedules: pure functions of the step, so that a resumed run cannot differ from an uninterrupted one.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "optim/options.h"

namespace troupe::optim {

/// Errors: kInvalidConfig for negative steps, a decay without total_steps, a warm-up that does not end before total_steps,
/// or min_ratio outside [0, 1].
[[nodiscard]] Status validate(const ScheduleOptions& options);

/// What the peak learning rate is multiplied by in optimizer step `step` (0 is the first). In [0, 1].
/// Warm-up: (step + 1) / warmup. Decay with p = (step + 1 - warmup) / (total - warmup): linear 1 - p, cosine (1 + cos(pi p)) / 2,
/// mapped onto [min_ratio, 1]. Steps beyond total_steps stay at min_ratio.
[[nodiscard]] double schedule_factor(const ScheduleOptions& options, std::int64_t step);

/// Whether a run that saved `saved` may go on with `now`: a changed shape or length bends the curve from here on, so it must be
/// asked for. Errors: kInvalidConfig naming what changed, unless `allow_change`.
[[nodiscard]] Status check_resume(const ScheduleOptions& saved, const ScheduleOptions& now, bool allow_change);

} // namespace troupe::optim
