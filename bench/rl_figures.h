/// @file
/// What the records of a run say about its rl stage, and TRL at the same work.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/benchmark.h"

namespace troupe::bench {

/// Of the rl stage, from the lines of metrics.jsonl. Time runs from the line before the stage's first step to its last
/// step.
struct RlStage {
  std::uint64_t steps = 0;
  double seconds = 0;
  struct Point {
    double seconds = 0;  ///< Since the stage's beginning.
    double accuracy = 0;
  };
  std::vector<Point> accuracy;  ///< Greedy, held out; in the order of time.
};
[[nodiscard]] RlStage rl_stage(const std::vector<nlohmann::json>& metrics);

/// When the accuracy first reached `level`, by straight lines between the points; nothing when it never did. A curve
/// that begins above the level reached it at its first point.
[[nodiscard]] std::optional<double> seconds_to(const std::vector<RlStage::Point>& curve, double level);

/// The work that both sides do.
struct RlWork {
  std::string model;  ///< Hugging Face folder both start from.
  int prompts_per_step = 0;
  int samples_per_prompt = 0;
  int max_new_tokens = 0;
  double lr = 0;
  int steps_max = 0;
  double until = 0;  ///< Accuracy at which to stop; 0: after steps_max.
  int eval_every = 0;
};
[[nodiscard]] std::vector<std::string> trl_arguments(const RlWork& work);

}  // namespace troupe::bench
