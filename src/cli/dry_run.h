/// @file
/// What `troupe run --dry-run` prints.
#pragma once

#include <string>

#include "cli/experiment/experiment.h"

namespace troupe::cli {

/// The plan of a run: actors, devices, bytes, tokens a step. As text, or as one JSON object.
[[nodiscard]] std::string dry_run(const experiment::Experiment& experiment, bool json);

} // namespace troupe::cli
