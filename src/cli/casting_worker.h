/// @file
/// From an experiment to what rank and rollout workers are told.
#pragma once

#include "actors/rank/options.h"
#include "actors/rollout/options.h"
#include "actors/runtime/frame.h"
#include "cli/experiment/experiment.h"

namespace troupe::cli {

[[nodiscard]] actors::RankOptions rank_options(const experiment::Experiment& experiment, const actors::WorkerFrame& frame);
[[nodiscard]] actors::RolloutWorkerOptions rollout_options(const experiment::Experiment& experiment, const actors::WorkerFrame& frame);

} // namespace troupe::cli
