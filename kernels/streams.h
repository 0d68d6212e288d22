/// @file
/// Two small kernels of DeepSeek-V4: the mixing weights of hyper-connections, and the pooling of a window of tokens into
/// one entry. Source: research/models.md 7.3 and 7.4.
#pragma once

#include <cstdint>

namespace troupe::kernels {

/// Per row, with m = mix: pre = sigmoid(m0 scale0 + base0) + eps; post = 2 sigmoid(m1 scale1 + base1); and the n x n
/// matrix C = softmax of each row of (m2 scale2 + base2) + eps, its columns and rows normalised in turn.
struct HyperMix {
  const float* mix = nullptr;    ///< [rows, 2n + n^2]
  const float* base = nullptr;   ///< [2n + n^2]
  const float* scale = nullptr;  ///< [3]
  float* out = nullptr;          ///< [rows, 2n + n^2]: pre | post | C, row-major.
  std::int64_t rows = 0, streams = 0, iterations = 0;
  float eps = 0;
};
/// A row's bits depend on its own mix only.
void hyper_mix(const HyperMix& args);

/// One window of `ratio` tokens becomes one entry: per channel a softmax over its slots, and the weighted sum of their
/// values. With `overlap` the slots are the first halves of the window before and the second halves of this one.
struct PoolWindow {
  const float* const* rows = nullptr;  ///< [overlap ? 2 ratio : ratio] tokens, null where there is none; each
                                       ///< [values | logits] of (overlap ? 2 : 1) * channels floats.
  const float* position = nullptr;     ///< [ratio, (overlap ? 2 : 1) * channels], added to the logits.
  float* out = nullptr;                ///< [channels]
  std::int64_t ratio = 0, channels = 0;
  bool overlap = false;
};
/// Sums over the slots are one chain in the order of the tokens.
void pool_window(const PoolWindow& args);

}  // namespace troupe::kernels
