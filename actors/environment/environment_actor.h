/// @file
/// The environment runner: episodes of the run's task, in a process of its own.
#pragma once

#include "actors/runtime/worker.h"
#include "rl/options.h"

namespace troupe::actors {

struct EnvironmentRunnerOptions {
  rl::TaskOptions task;
  std::size_t episodes_max = 4096; ///< Episodes kept between two turns; what is dropped is played again when its next turn comes.
};

/// Serves EnvironmentCalls until the head stops it. Blocking. Errors: those of run_worker and rl::make_task.
[[nodiscard]] Status run_environment(const WorkerFrame& frame, const EnvironmentRunnerOptions& options);

} // namespace troupe::actors
