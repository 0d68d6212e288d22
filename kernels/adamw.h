/// @file
/// One fused step of AdamW on flat spans.
#pragma once

#include <cstdint>

namespace troupe::kernels {

/// Arguments of `adamw_step`.
struct AdamW {
  float* param = nullptr;       ///< [n], changed.
  const float* grad = nullptr;  ///< [n]
  float* m = nullptr;           ///< [n], first moment, changed.
  float* v = nullptr;           ///< [n], second moment, changed.
  std::int64_t n = 0;
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;  ///< Decoupled: param *= 1 - lr * weight_decay, before the step.
  std::int64_t step = 1;    ///< Counts from 1; corrects the bias of both moments.
  float grad_scale = 1;     ///< Multiplies the gradient first (clipping by global norm).
};

/// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; param -= lr / (1-b1^t) * m / (sqrt(v / (1-b2^t)) + eps).
/// Elementwise: bits depend neither on where a span begins or ends nor on threads.
/// Source: Loshchilov and Hutter, 2017, arXiv:1711.05101, algorithm 2.
void adamw_step(const AdamW& args);

}  // namespace troupe::kernels
