/// @file
/// Functions of one number, and gated units that clamp. Elementwise: a result's bits depend on its own inputs only.
#pragma once

#include <cstdint>

namespace troupe::kernels {

enum class Pointwise : std::uint8_t {
  kExp,
  kSigmoid,   ///< 1 / (1 + exp(-x))
  kSilu,      ///< x sigmoid(x)
  kSoftplus,  ///< log(1 + exp(x)), to a few ulp for every x
  kTanh,
};

/// y[i] = f(x[i]); y may be x. On the kernels' own exp and log, so the instruction set never shows.
void pointwise(Pointwise function, const float* x, float* y, std::int64_t n);

/// Arguments of `gated_unit`. A row is [gate | up] of `cols` floats each.
struct GatedUnit {
  const float* gate_up = nullptr;  ///< [rows, 2 cols]
  float* y = nullptr;              ///< [rows, cols]
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  float limit = 0;      ///< > 0: gate is cut above it, up on both sides. 0: nothing is cut.
  float alpha = 1;      ///< Of the sigmoid.
  float up_offset = 0;  ///< Added to up after the cut.
};

/// y = (up + up_offset) gate sigmoid(alpha gate). Source: research/models.md 7.5 and 8.
void gated_unit(const GatedUnit& args);

/// x = cap tanh(multiplier x / cap); with cap 0 only x = multiplier x. In place.
void softcap(float* x, std::int64_t n, float multiplier, float cap);

/// Rotates neighbouring channels (2i, 2i+1) of the last 2 `pairs` channels of every head, in place; `inverse` turns back.
struct RopePairs {
  float* x = nullptr;  ///< [rows, heads, head_dim]
  const float* cos = nullptr;  ///< [rows, pairs]
  const float* sin = nullptr;
  std::int64_t rows = 0, heads = 0, head_dim = 0, pairs = 0;
  bool inverse = false;
};
void rope_pairs(const RopePairs& args);

}  // namespace troupe::kernels
