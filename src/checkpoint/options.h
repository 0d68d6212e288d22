/// @file
/// What the config says about checkpoints.
#pragma once

#include <cstdint>

namespace troupe::checkpoint {

struct CheckpointOptions {
  std::int64_t every_steps = 10;  ///< Optimizer steps between commits; 0 = only at the end of a stage and on a stop.
  int keep = 3;                   ///< Commits kept; older ones go after a newer one is durable and verified. 0 = all.
  bool at_end = true;             ///< Commit when a stage ends.
};

}  // namespace troupe::checkpoint
