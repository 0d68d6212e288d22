/// @file
/// The arithmetic of the CPU kernels, bit for bit: their exp and log (cpu/leaf_math.inl), their sums of 16 and of 64
/// lanes. nvcc compiles with -fmad=false, so that only what says fmaf is fused; +, -, *, /, sqrt are IEEE's on both.
#pragma once

#include "kernels/cuda/device.cuh"

namespace troupe::kernels::cuda {

constexpr float kInfinity = __builtin_huge_valf();

/// exp(x), at most 2 ulp off for x in [-87.3, 88.3]; 0 below, exp(88.3) above, NaN for NaN.
__device__ inline float exp_of(float x) {
  constexpr float kRoundToWhole = 12582912.0f;  // 1.5 * 2^23: adding it leaves whole numbers only
  if (x < -87.3f) return 0.0f;
  const float in_range = x > 88.3f ? 88.3f : x;
  const float n = fmaf(in_range, 1.44269504f, kRoundToWhole) - kRoundToWhole;
  const float r = fmaf(-n, -2.12194440e-4f, fmaf(-n, 0.693359375f, in_range));
  float q = 0.00139262508f;
  q = fmaf(q, r, 0.00836323288f);
  q = fmaf(q, r, 0.0416665542f);
  q = fmaf(q, r, 0.166665767f);
  q = fmaf(q, r, 0.5f);
  const float p = fmaf(r * r, q, r) + 1.0f;
  return p * __uint_as_float(static_cast<unsigned>(__float2int_rn(n) + 127) << 23);
}

/// log(x) for positive normal x, at most 2 ulp off.
__device__ inline float log_of(float x) {
  const unsigned raw = __float_as_uint(x);
  const int exponent = static_cast<int>(raw - 0x3f3504f3u) >> 23;
  const auto e = static_cast<float>(exponent);
  const float t = __uint_as_float(raw - (static_cast<unsigned>(exponent) << 23)) - 1.0f;
  float q = -0.0790274377f;
  q = fmaf(q, t, 0.126223198f);
  q = fmaf(q, t, -0.129981838f);
  q = fmaf(q, t, 0.142144959f);
  q = fmaf(q, t, -0.166412815f);
  q = fmaf(q, t, 0.200010451f);
  q = fmaf(q, t, -0.250003064f);
  q = fmaf(q, t, 0.333333307f);
  const float t2 = t * t;
  float tail = fmaf(e, -2.12194440e-4f, (t2 * t) * q);
  tail = fmaf(-t2, 0.5f, tail);
  return fmaf(e, 0.693359375f, t + tail);
}

/// 1 / (1 + exp(-x)), without overflow on either side.
__device__ inline float sigmoid_of(float x) {
  const float e = exp_of(0.0f - fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/// The larger one; a NaN only where both are.
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }

/// Over 16 neighbouring lanes, the same in all of them: l + (l ^ 8), then 4, 2, 1. All lanes of the warp take part.
__device__ inline float sum_of_16(float value) {
  for (int other = 8; other > 0; other /= 2) value += __shfl_xor_sync(kAllLanes, value, other);
  return value;
}
__device__ inline float max_of_16(float value) {
  for (int other = 8; other > 0; other /= 2) value = larger(value, __shfl_xor_sync(kAllLanes, value, other));
  return value;
}
__device__ inline float max_of_warp(float value) {
  return max_of_16(larger(value, __shfl_xor_sync(kAllLanes, value, 16)));
}

/// The largest value, the lowest number of a block of kThreads, in every thread. All its threads call.
template <int kThreads>
__device__ inline float max_of_block(float value) {
  TROUPE_SHARED(float, warps, [kThreads / kWarp]);
  value = max_of_warp(value);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) value = larger(value, warps[w]);
  __syncthreads();
  return value;
}
template <int kThreads>
__device__ inline std::int64_t min_of_block(std::int64_t number) {
  TROUPE_SHARED(std::int64_t, warps, [kThreads / kWarp]);
  for (int other = 16; other > 0; other /= 2) {
    const std::int64_t theirs = __shfl_xor_sync(kAllLanes, number, other);
    number = theirs < number ? theirs : number;
  }
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = number;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) number = warps[w] < number ? warps[w] : number;
  __syncthreads();
  return number;
}

/// 64 sums of one warp: lane l has those of columns l and l + 32 (modulo 64). Their total, in every lane.
__device__ inline float sum_of_64(float low, float high) {
  low += __shfl_xor_sync(kAllLanes, low, 16);
  high += __shfl_xor_sync(kAllLanes, high, 16);
  return sum_of_16(low + high);
}

}  // namespace troupe::kernels::cuda
