/// @file
/// Root-mean-square normalisation, forward and backward.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "kernels/device.h"

namespace troupe::kernels {

/// Arguments of `rmsnorm_forward`. A vector is `cols` contiguous floats; `heads` of them lie side by side in each row,
/// so that the heads inside a fused q|k|v row can be normalised in place. Strides count floats from row to row.
/// All pointers are device pointers when the stream is a CUDA stream, host pointers otherwise.
struct RmsNormForward {
  const float* x = nullptr;       ///< [rows, heads, cols]
  const float* weight = nullptr;  ///< [cols]
  float* y = nullptr;        ///< [rows, heads, cols]; may be x itself (same stride), must not overlap it otherwise.
  float* inv_rms = nullptr;  ///< [rows, heads], kept for the backward pass; null to skip.
  std::int64_t rows = 0;     ///< 0 is legal and does nothing.
  std::int64_t cols = 0;     ///< 1 ... 65536.
  std::int64_t heads = 1;
  std::int64_t x_stride = 0;  ///< 0: heads * cols.
  std::int64_t y_stride = 0;  ///< 0: heads * cols.
  float eps = 1e-5f;          ///< Added to mean(x^2), so it has the units of x^2.
};

/// y = x * s * weight, with s = 1 / sqrt(mean(x^2) + eps) per vector.
///
/// Determinism: a vector's bits depend on nothing but the vector; sums use 64 lanes by column and a fixed tree.
/// Cost: reads x twice (the second time from cache), writes y once.
/// Source: Zhang and Sennrich, 2019, arXiv:1910.07467, eq. 4.
void rmsnorm_forward(const RmsNormForward& args);

/// The same on a CUDA stream (returns once the work is enqueued), or on this thread when the stream is null.
/// CUDA sums in the same order: the CPU's bits.
/// Errors: kInvalidArgument for a null pointer or cols out of range; kUnavailable without libtroupe_cuda.so, or with
/// CUDA's own text when the launch is refused.
[[nodiscard]] Status rmsnorm_forward(const RmsNormForward& args, Stream stream);

/// Arguments of `rmsnorm_backward`; the layout is that of the forward pass.
struct RmsNormBackward {
  const float* x = nullptr;        ///< [rows, heads, cols], the input of the forward pass.
  const float* weight = nullptr;   ///< [cols]
  const float* inv_rms = nullptr;  ///< [rows, heads], from the forward pass.
  const float* dy = nullptr;       ///< [rows, heads, cols]
  float* dx = nullptr;             ///< [rows, heads, cols], written; may be dy itself (same stride).
  float* dweight = nullptr;        ///< [cols], written (not added to); null to skip.
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t heads = 1;
  std::int64_t x_stride = 0;   ///< 0: heads * cols.
  std::int64_t dy_stride = 0;  ///< 0: heads * cols.
  std::int64_t dx_stride = 0;  ///< 0: heads * cols.
};

/// dx = s (w dy - x s^2 mean(w dy x)); dweight = sum over vectors of dy x s.
///
/// Determinism: dx as in the forward pass; dweight sums blocks of 64 vectors in order, whatever the threads.
void rmsnorm_backward(const RmsNormBackward& args);
[[nodiscard]] Status rmsnorm_backward(const RmsNormBackward& args, Stream stream);

}  // namespace troupe::kernels
