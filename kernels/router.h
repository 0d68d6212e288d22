/// @file
/// From router logits to the experts of each token and their weights.
#pragma once

#include <cstdint>

namespace troupe::kernels {

enum class RouterScore : std::uint8_t {
  kSoftmax,          ///< s = softmax over all experts.
  kSigmoid,          ///< s = sigmoid(logit).
  kSqrtSoftplus,     ///< s = sqrt(log(1 + exp(logit))).
  kSoftmaxOfChosen,  ///< Chosen by the logits; weights are their softmax.
};

/// Arguments of `route`.
struct Router {
  const float* logits = nullptr;        ///< [rows, experts]
  const float* correction = nullptr;    ///< [experts], added to s for the choice only; null: none.
  const std::int32_t* fixed = nullptr;  ///< [rows, chosen], experts that are given instead of chosen; null: chosen.
  std::int32_t* choices = nullptr;      ///< [rows, chosen], best first.
  float* weights = nullptr;             ///< [rows, chosen]
  std::int64_t rows = 0;
  std::int64_t experts = 0;
  std::int64_t chosen = 0;
  RouterScore score = RouterScore::kSoftmax;
  std::int64_t groups = 1;       ///< Divides experts. A group's score is the sum of its two largest s + correction.
  std::int64_t groups_kept = 1;  ///< Only the best groups' experts can be chosen.
  bool normalise = true;         ///< Divide by the sum of the chosen s plus `guard`.
  float guard = 0;
  float scale = 1;  ///< Multiplies the weights.
};

/// Determinism: a row's choices and weights depend on its own logits; ties go to the lower index, of experts and of
/// groups. A NaN is never chosen while a number is left.
void route(const Router& args);

}  // namespace troupe::kernels
