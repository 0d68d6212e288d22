/// @file
/// The gated unit of the feed-forward layer: silu(gate) * up.
#pragma once

#include <cstdint>

namespace troupe::kernels {

/// Arguments of `swiglu_forward`. A fused row [gate | up] of 2I floats is: gate = base, up = base + I, in_stride = 2I.
struct SwigluForward {
  const float* gate = nullptr;  ///< [rows, cols]
  const float* up = nullptr;    ///< [rows, cols]
  float* y = nullptr;           ///< [rows, cols]; may be gate or up itself (same stride).
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t in_stride = 0;  ///< Of gate and of up; 0: cols.
  std::int64_t y_stride = 0;   ///< 0: cols.
};

/// y = gate / (1 + exp(-gate)) * up. Elementwise: bits do not depend on position, alignment or neighbours.
/// Source: Shazeer, 2020, arXiv:2002.05202, eq. 5.
void swiglu_forward(const SwigluForward& args);

/// Arguments of `swiglu_backward`. dgate and dup may be gate and up themselves (same stride).
struct SwigluBackward {
  const float* gate = nullptr;
  const float* up = nullptr;
  const float* dy = nullptr;
  float* dgate = nullptr;
  float* dup = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t in_stride = 0;   ///< Of gate and of up; 0: cols.
  std::int64_t dy_stride = 0;   ///< 0: cols.
  std::int64_t out_stride = 0;  ///< Of dgate and of dup; 0: cols.
};

/// With s = sigmoid(gate): dup = dy gate s; dgate = dy up s (1 + gate (1 - s)).
void swiglu_backward(const SwigluBackward& args);

}  // namespace troupe::kernels
