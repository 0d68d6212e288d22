/// @file
/// The names things go by between processes: policy versions, prompts, samples.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace troupe {

/// A set of policy weights: `step` optimizer steps into incarnation `epoch` of the training state.
/// Compared in that order, so that weights of a rolled-back epoch are always older.
struct PolicyVersion {
  std::uint32_t epoch = 0;
  std::uint64_t step = 0;
  friend auto operator<=>(const PolicyVersion&, const PolicyVersion&) = default;
};

/// One sample of one prompt. The identity of all its randomness, together with the run's seed.
struct SampleId {
  std::uint64_t prompt = 0; ///< Position in the run's stream of prompts; never reused.
  std::uint32_t sample = 0; ///< Index in the prompt's group.
  friend auto operator<=>(const SampleId&, const SampleId&) = default;
};

/// "e0.s12": how a version is printed.
[[nodiscard]] inline std::string to_string(PolicyVersion v) {
  return "e" + std::to_string(v.epoch) + ".s" + std::to_string(v.step);
}
[[nodiscard]] inline std::string to_string(SampleId id) {
  return std::to_string(id.prompt) + "/" + std::to_string(id.sample);
}

} // namespace troupe
