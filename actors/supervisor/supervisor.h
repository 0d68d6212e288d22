/// @file
/// The supervisor process of a run.
#pragma once

#include "actors/supervisor/head.h"
#include "actors/supervisor/options.h"
#include "base/result.h"

namespace troupe::actors {

/// Plays a run from its start (or its newest commit, with `options.resume`) to its end: makes the run folder and the credential, starts the
/// node agent of this machine, hosts the head. Blocking. SIGINT and SIGTERM once drain and save, twice end at once.
/// Errors: what kept the run from starting: kAlreadyExists (the folder holds a run), kUnavailable (another supervisor has it), ...
[[nodiscard]] Result<HeadOutcome> run_supervisor(const SupervisorOptions& options);

} // namespace troupe::actors
