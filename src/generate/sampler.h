/// @file
/// From logits to a token and its log-prob.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "generate/options.h"
#include "generate/request.h"
#include "kernels/device.h"
#include "kernels/sampling.h"

namespace troupe::generate {

/// A sampled token.
struct Sampled {
  std::int32_t id = -1;  ///< -1: the logits have no largest finite value to go by (NaN, infinite, or all -inf).
  float logprob = 0;     ///< Under the distribution sampled from; greedy: at temperature 1.
  int kept = 0;          ///< Tokens that there were to choose from.
};

/// A row of logits and how to sample from it. Shapes: logits [V].
struct Draw {
  std::span<const float> logits;
  const SamplingParams* params = nullptr;
  double uniform = 0;  ///< In [0, 1).
};

/// Draws by inverting the cumulative distribution in order of ids, so that a filter which removes nothing changes
/// nothing. Holds scratch memory only; a result depends on its own draw alone. Greedy takes the lowest id of equal
/// logits. Untruncated log-probs have the bits of kernels::logprob, hence of Model::score.
class Sampler {
 public:
  /// `where`: of untruncated rows.
  explicit Sampler(kernels::Where where = kernels::Where::kHost) : where_(where) {}
  /// One token per draw, all of the same vocabulary; the result is valid until the next call. Untruncated rows are
  /// drawn on all threads. Errors: none on the CPU, else those of kernels/offload.h.
  [[nodiscard]] Result<std::span<const Sampled>> sample(std::span<const Draw> draws);
  /// The same of one, where nothing can fail: on the CPU.
  [[nodiscard]] Sampled sample(std::span<const float> logits, const SamplingParams& params, double uniform);

 private:
  struct Candidate {
    float weight;
    std::int32_t id;
  };
  [[nodiscard]] std::optional<Sampled> sample_truncated(const Draw& draw);
  void truncate(const SamplingParams& params, double total);

  kernels::Where where_;
  std::vector<float> weights_;         // exp((logit - max) / temperature)
  std::vector<Candidate> candidates_;  // kept by the filters, by id
  std::vector<kernels::SampleRow> rows_;
  std::vector<std::size_t> whole_;  // the draws that rows_ are
  std::vector<Sampled> sampled_;
};

/// The log-prob of `id`, then the `params.alternatives` most likely tokens, best first (of equal ones the lower id), of the whole distribution
/// at the temperature; greedy: at 1. Shape: logits [V].
[[nodiscard]] std::vector<Alternative> alternatives(std::span<const float> logits, const SamplingParams& params, std::int32_t id);

/// Errors: kInvalidArgument naming the value and its range.
[[nodiscard]] Status check(const SamplingParams& params);

}  // namespace troupe::generate
