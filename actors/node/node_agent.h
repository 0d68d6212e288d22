/// @file
/// The agent of one machine.
#pragma once

#include "actors/runtime/frame.h"
#include "base/result.h"

namespace troupe::actors {

/// The process of a node agent: connects to the head named in the frame and serves it until it is told to stop or the head is gone.
/// On a machine that joined, SIGINT and SIGTERM once leave the run (its workers drain first), twice end at once.
/// Blocking. Errors: kUnavailable when the head cannot be reached or went away; kFenced when it no longer counts on us; kCancelled when ended
/// at once; kNotFound when an executable is missing.
[[nodiscard]] Status run_node_agent(const WorkerFrame& frame);

} // namespace troupe::actors
