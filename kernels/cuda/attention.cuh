/// @file
/// What the attention kernels share: a block of 256 threads as 16 x 16, tiles of 64 keys, and products of tiles that
/// lie in shared memory, row by row with one float between rows (neighbouring rows fall into different banks).
#pragma once

#include <cmath>

#include "kernels/attention.h"
#include "kernels/cuda/math.cuh"

namespace troupe::kernels::cuda {

constexpr int kSide = 16;             // threads along rows (ty) and along keys or channels (tx)
constexpr int kTileThreads = kSide * kSide;
constexpr int kTileKeys = 64;
constexpr int kKeysEach = kTileKeys / kSide;  // of a thread: tx, tx + 16, tx + 32, tx + 48

__device__ inline int tx() { return static_cast<int>(threadIdx.x) % kSide; }
__device__ inline int ty() { return static_cast<int>(threadIdx.x) / kSide; }

/// The default scale of a shape, rounded as on the CPU.
inline AttentionShape with_scale(AttentionShape shape) {
  if (shape.scale == 0) shape.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  return shape;
}

/// Chunks of 16 channels a thread keeps, of the smallest kernel that fits head_dim: 4, 8 or 16.
inline int chunks_for(std::int64_t head_dim) { return head_dim <= 64 ? 4 : head_dim <= 128 ? 8 : 16; }

/// s[i][j] = chain over the channels of factor a[row i] . b[tx + 16 j], rows ty * kRows + i.
template <int kRows>
__device__ void dot_tile(const float* a, const float* b, int hd, float factor, float (&s)[kRows][kKeysEach]) {
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kKeysEach; ++j) s[i][j] = 0;
  const int stride = hd + 1;
  const float* rows = a + ty() * kRows * stride;
  const float* keys = b + tx() * stride;
#pragma unroll 4
  for (int d = 0; d < hd; ++d) {
    float row[kRows];
    float key[kKeysEach];
    for (int i = 0; i < kRows; ++i) row[i] = rows[i * stride + d] * factor;
    for (int j = 0; j < kKeysEach; ++j) key[j] = keys[j * kSide * stride + d];
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kKeysEach; ++j) s[i][j] = fmaf(row[i], key[j], s[i][j]);
  }
}

/// Rows [0, count) of memory, `stride` floats apart, into a tile; all threads.
__device__ inline void load_rows(const float* from, std::int64_t stride, std::int64_t count, int hd, float* tile) {
  for (std::int64_t i = threadIdx.x; i < count * hd; i += kTileThreads) {
    const std::int64_t row = i / hd;
    const std::int64_t d = i % hd;
    tile[row * (hd + 1) + d] = from[row * stride + d];
  }
}

}  // namespace troupe::kernels::cuda
