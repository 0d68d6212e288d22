/// @file
/// The rules between keys. Internal to experiment.
#pragma once

#include "cli/experiment/experiment.h"
#include "config/load.h"

namespace troupe::experiment {

/// Reports every rule that the filled-in experiment breaks. `tree` is what it was made from.
void check_experiment(const Experiment& experiment, config::CrossChecks& checks);

}  // namespace troupe::experiment
