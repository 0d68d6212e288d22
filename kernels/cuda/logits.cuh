/// @file
/// What logprob.cu and sampling.cu share: the largest logit of a row and the sum of its exponentials, by a block, in
/// the CPU's order: 64 lanes by column, then a fixed tree.
#pragma once

#include "kernels/cuda/math.cuh"

namespace troupe::kernels::cuda {

constexpr int kRowThreads = 512;
constexpr std::int64_t kRowTile = 4096;   // columns in shared memory at a time
constexpr float kFarBelow = -200.0f;      // exp is 0 long before, and 0 * -inf would spoil the entropy

/// The largest of n logits, NaN being none of them; -inf where there is no number. In every thread.
__device__ inline float row_maximum(const float* x, std::int64_t n) {
  float most = -kInfinity;
  for (std::int64_t i = threadIdx.x; i < n; i += kRowThreads) most = larger(most, x[i]);
  return max_of_block<kRowThreads>(most);
}

/// logit / temperature - maximum, cut far below; a NaN stays one.
__device__ inline float below_maximum(float logit, float temperature, float maximum) {
  const float below = (temperature != 1.0f ? logit / temperature : logit) - maximum;
  return below < kFarBelow ? kFarBelow : below;
}

struct RowSums {
  float sum, weighted;  ///< Of e = exp(below), and of e * below where asked for; in every thread.
};

/// Every thread makes exponentials of a tile, 64 of them add up their columns. `seen(column, e)` is called by the thread
/// that made e.
template <class Seen>
__device__ RowSums sum_exponentials(const float* x, std::int64_t n, float temperature, float maximum, bool weighted,
                                    Seen seen) {
  TROUPE_SHARED(float, tile, [kRowTile]);
  TROUPE_SHARED(float, belows, [kRowTile]);
  TROUPE_SHARED(float, lanes, [2][64]);
  float sum = 0;
  float weight = 0;
  for (std::int64_t first = 0; first < n; first += kRowTile) {
    const std::int64_t count = n - first < kRowTile ? n - first : kRowTile;
    for (std::int64_t i = threadIdx.x; i < count; i += kRowThreads) {
      const float below = below_maximum(x[first + i], temperature, maximum);
      const float e = exp_of(below);
      tile[i] = e;
      if (weighted) belows[i] = below;
      seen(first + i, e);
    }
    __syncthreads();
    if (threadIdx.x < 64) {
      for (std::int64_t i = threadIdx.x; i < count; i += 64) {
        sum += tile[i];
        if (weighted) weight = fmaf(tile[i], belows[i], weight);
      }
    }
    __syncthreads();
  }
  if (threadIdx.x < 64) {
    lanes[0][threadIdx.x] = sum;
    lanes[1][threadIdx.x] = weight;
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % kWarp;
  return {sum_of_64(lanes[0][lane], lanes[0][lane + kWarp]), sum_of_64(lanes[1][lane], lanes[1][lane + kWarp])};
}

/// Lowest column whose logit equals `value`, 0 where there is none; in every thread.
__device__ inline std::int64_t first_index_of(float value, const float* x, std::int64_t n) {
  std::int64_t found = n;
  for (std::int64_t i = threadIdx.x; i < n && found == n; i += kRowThreads)
    if (x[i] == value) found = i;
  found = min_of_block<kRowThreads>(found);
  return found < n ? found : 0;
}

}  // namespace troupe::kernels::cuda
