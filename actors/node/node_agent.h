/// @file
/// The agent of one machine.
#pragma once

#include "actors/runtime/frame.h"
#include "base/result.h"

namespace troupe::actors {

/// The process of a node agent: connects to the head named in the frame and serves it until it is told to stop or the head is gone.
/// Blocking. Errors: kUnavailable when the head cannot be reached or went away; kNotFound when an executable is missing.
[[nodiscard]] Status run_node_agent(const WorkerFrame& frame);

} // namespace troupe::actors
