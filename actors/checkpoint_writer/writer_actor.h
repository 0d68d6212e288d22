/// @file
/// The checkpoint writer: owns the memory into which the rank copies its state, and makes it durable.
#pragma once

#include <filesystem>

#include "actors/runtime/worker.h"

namespace troupe::actors {

/// Serves PrepareMemory and CommitState until the head stops it. `folder`: the run's checkpoints. Blocking.
[[nodiscard]] Status run_checkpoint_writer(const WorkerFrame& frame, const std::filesystem::path& folder);

} // namespace troupe::actors
