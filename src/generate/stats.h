/// @file
/// Counters of an engine.
#pragma once

#include <cstdint>
#include <vector>

#include "generate/request.h"

namespace troupe::generate {

/// What one step did.
struct StepReport {
  std::vector<Completion> finished;
  int tokens = 0;     ///< Rows of the forward pass.
  int sampled = 0;    ///< Tokens sampled.
  int preempted = 0;  ///< Requests that lost their KV entries to older ones.
};

/// Since the engine was made, except the gauges.
struct EngineStats {
  std::uint64_t steps = 0;
  std::uint64_t tokens_computed = 0;  ///< Rows of all forward passes.
  std::uint64_t tokens_sampled = 0;
  std::uint64_t tokens_shared = 0;  ///< Prompt tokens taken from another sample instead of computed.
  std::uint64_t preemptions = 0;
  std::uint64_t drafts = 0;           ///< Tokens guessed ahead and checked.
  std::uint64_t drafts_accepted = 0;  ///< Of them: were sampled.
  std::uint64_t completions = 0;  ///< Finished by stop or length.
  std::uint64_t errors = 0;
  std::uint64_t aborted = 0;
  int running = 0;         ///< Gauge: requests that hold KV pages.
  int waiting = 0;         ///< Gauge: requests that wait for space.
  int pages = 0;           ///< Pages of the KV cache.
  int pages_used = 0;      ///< Gauge: pages held by requests or kept prompts.
  int cached_prompts = 0;  ///< Gauge.
};

}  // namespace troupe::generate
