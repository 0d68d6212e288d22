/// @file
/// The environment runner: episodes of the run's task, in a process of its own.
#pragma once

#include "actors/runtime/worker.h"
#include "rl/options.h"

namespace troupe::actors {

struct EnvironmentRunnerOptions {
  rl::TaskOptions task;
  std::size_t episodes_max = 65536; ///< Open episodes; further resets are refused.
};

/// Serves EnvironmentCalls until the head stops it. Blocking. Errors: those of run_worker and rl::make_task.
[[nodiscard]] Status run_environment(const WorkerFrame& frame, const EnvironmentRunnerOptions& options);

} // namespace troupe::actors
