/// @file
/// The rollout worker: groups of prompts in, scored samples out, under weights that change while it works.
#pragma once

#include "actors/rollout/options.h"
#include "actors/runtime/worker.h"

namespace troupe::actors {

/// Serves the head until it is stopped. Blocking. Errors: those of run_worker and load_policy.
[[nodiscard]] Status run_rollout(const WorkerFrame& frame, const RolloutWorkerOptions& options);

} // namespace troupe::actors
