/// @file
/// The rank: trains, publishes weights, hands its state to the checkpoint writer.
#pragma once

#include "actors/rank/options.h"
#include "actors/runtime/worker.h"

namespace troupe::actors {

/// Serves the head until it is stopped. Blocking. Errors: those of run_worker, load_policy and WeightStore::create.
[[nodiscard]] Status run_rank(const WorkerFrame& frame, const RankOptions& options);

} // namespace troupe::actors
