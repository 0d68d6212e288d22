/// @file
/// What a rollout worker needs to know of the experiment.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/policy/options.h"
#include "base/units.h"
#include "generate/options.h"

namespace troupe::actors {

/// Sampling of one `[[stage]]`.
struct RolloutStage {
  generate::SamplingParams train;
  generate::SamplingParams eval; ///< Greedy.
};

struct RolloutWorkerOptions {
  PolicyOptions policy;
  std::uint64_t seed = 0; ///< The run's: names the randomness of every sample, whoever computes it.
  int threads = 1;
  generate::EngineOptions engine;
  std::vector<RolloutStage> stages;
  int turns_max = 16;                                     ///< Turns of an episode; one that would go on ends as truncated.
  std::size_t samples_max = 512;                          ///< Samples held at a time; further work is refused.
  Duration environment_deadline = std::chrono::seconds(30); ///< For one answer of the environment, queue included.
  Duration gauges_every = std::chrono::seconds(1);
};

} // namespace troupe::actors
