/// @file
/// From logits to a token and its log-prob.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "generate/options.h"

namespace troupe::generate {

/// A sampled token.
struct Sampled {
  std::int32_t id = -1;  ///< -1: the logits have no largest finite value to go by (NaN, infinite, or all -inf).
  float logprob = 0;     ///< Under the distribution sampled from; greedy: at temperature 1.
  int kept = 0;          ///< Tokens that there were to choose from.
};

/// Draws by inverting the cumulative distribution in order of ids, so that a filter which removes nothing changes
/// nothing. Holds scratch memory only; a result depends on the arguments alone.
class Sampler {
 public:
  /// Shapes: logits [V]. `uniform` in [0, 1). Greedy takes the lowest id of equal logits.
  /// Untruncated log-probs have the bits of kernels::logprob, hence of Model::score.
  [[nodiscard]] Sampled sample(std::span<const float> logits, const SamplingParams& params, double uniform);

 private:
  struct Candidate {
    float weight;
    std::int32_t id;
  };
  void truncate(const SamplingParams& params, double total);

  std::vector<float> weights_;         // exp((logit - max) / temperature)
  std::vector<Candidate> candidates_;  // kept by the filters, by id
};

/// Errors: kInvalidArgument naming the value and its range.
[[nodiscard]] Status check(const SamplingParams& params);

}  // namespace troupe::generate
