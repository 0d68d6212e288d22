/// @file
/// What the attention kernels share: a block of 256 threads as 16 x 16, tiles of 64 keys, and products of tiles that
/// lie in shared memory, row by row with one float between rows (neighbouring rows fall into different banks).
#pragma once

#include <cmath>

#include "kernels/attention.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda_args.h"

namespace troupe::kernels::cuda {

constexpr int kSide = 16;             // threads along rows (ty) and along keys or channels (tx)
constexpr int kTileThreads = kSide * kSide;
constexpr int kTileKeys = 64;
constexpr int kKeysEach = kTileKeys / kSide;  // of a thread: tx, tx + 16, tx + 32, tx + 48

__device__ inline int tx() { return static_cast<int>(threadIdx.x) % kSide; }
__device__ inline int ty() { return static_cast<int>(threadIdx.x) / kSide; }

/// Most (query, head of its group) pairs that `decode` takes.
constexpr std::int64_t kDecodePairs = 16;
/// attention_forward of few rows over many keys, with a workspace (attention_decode.cu). The same bits.
const char* decode(const CudaAttention& a, void* stream);

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

/// Where the keys of a tile lie, and how far the search for them has come (two places: one read, one written).
struct KeyTile {
  const float* k[kTileKeys];
  const float* v[kTileKeys];
  std::int64_t k_step[kTileKeys];  ///< From channel to channel: 1, in pages 16.
  std::int64_t span[2], before[2];
};

/// Writes where key t of a span lies, of one kv head, as key `at` of a tile.
__device__ inline void place_key(const KeySpan& span, std::int64_t t, std::int64_t kv_head, std::int64_t hd,
                                 unsigned at, KeyTile& tile) {
  const bool rows = span.layout == KvLayout::kRows;
  tile.k[at] = rows ? span.k + t * span.stride + kv_head * hd
                    : span.k + (kv_head * span.stride + t / 16 * 16) * hd + t % 16;
  tile.v[at] = span.v + (rows ? t * span.stride + kv_head * hd : (kv_head * span.stride + t) * hd);
  tile.k_step[at] = rows ? 1 : 16;
}

/// Keys or values of the found tile into shared memory. A tile that begins in a page is read 16 keys side by side. Ends
/// with a barrier.
__device__ inline void load_found(const KeyTile& tile, bool values, std::int64_t count, int hd, float* to) {
  if (values || tile.k_step[0] == 1) {
    for (std::int64_t i = threadIdx.x; i < count * hd; i += kTileThreads) {
      const std::int64_t t = i / hd;
      const std::int64_t d = i % hd;
      to[t * (hd + 1) + d] = values ? tile.v[t][d] : tile.k[t][d * tile.k_step[t]];
    }
  } else {
    for (std::int64_t i = threadIdx.x; i < (count + 15) / 16 * 16 * hd; i += kTileThreads) {
      const std::int64_t t = i / (16 * hd) * 16 + i % 16;
      const std::int64_t d = i / 16 % hd;
      if (t < count) to[t * (hd + 1) + d] = tile.k[t][d * tile.k_step[t]];
    }
  }
  __syncthreads();
}

/// Keys of a segment, counted by every warp for itself.
__device__ inline std::int64_t keys_of(const AttentionSegment& s) {
  std::int64_t keys = 0;
  for (std::int64_t i = threadIdx.x % kWarp; i < s.span_count; i += kWarp) keys += s.spans[i].count;
  for (int other = 16; other > 0; other /= 2) keys += __shfl_xor_sync(kAllLanes, keys, other);
  return keys;
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
