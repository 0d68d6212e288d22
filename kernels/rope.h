/// @file
/// Rotary position embedding, in place.
#pragma once

#include <cstdint>

namespace troupe::kernels {

/// Arguments of `rope`. Pair i of a head is (x[i], x[i + rotary/2]), the layout of Hugging Face's `rotate_half`.
struct Rope {
  float* x = nullptr;          ///< [rows, heads, head_dim], changed in place; `stride` floats from row to row.
  const float* cos = nullptr;  ///< [rows, rotary/2]
  const float* sin = nullptr;  ///< [rows, rotary/2]
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t stride = 0;  ///< 0: heads * head_dim.
  std::int64_t rotary = 0;  ///< Leading dimensions of a head that turn, even; 0: all of them.
  bool inverse = false;     ///< Turns backwards: the backward pass of the same rotation.
};

/// (a, b) -> (a cos - b sin, b cos + a sin); `inverse` uses -sin. Elementwise: a row's bits depend on nothing else.
/// Source: Su et al., 2021, arXiv:2104.09864, eq. 34.
void rope(const Rope& args);

}  // namespace troupe::kernels
