/// @file
/// bfloat16 as the CPU kernels have it (cpu/vector_avx2.h): rounding, and sums that flush what lies below the smallest
/// normal number.
#pragma once

#include "kernels/cuda/math.cuh"

namespace troupe::kernels::cuda {

/// The bits of x rounded to bfloat16: to nearest, ties to even; subnormal numbers become 0 of their sign.
__device__ inline unsigned bfloat16_bits(float x) {
  const unsigned raw = __float_as_uint(x);
  if (x != x) return (raw | 0x00400000u) >> 16;
  if ((raw & 0x7f800000u) == 0) return (raw & 0x80000000u) >> 16;
  return (raw + 0x7fffu + (raw >> 16 & 1u)) >> 16;
}

#ifdef TROUPE_CUDA_EMULATED
inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
inline float fma_flushing(float a, float b, float c) { return flushed(fmaf(flushed(a), flushed(b), flushed(c))); }
inline float add_flushing(float a, float b) { return flushed(flushed(a) + flushed(b)); }
#else
__device__ inline float fma_flushing(float a, float b, float c) {
  float d;
  asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
}
__device__ inline float add_flushing(float a, float b) {
  float d;
  asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}
#endif

/// d += a b of a warp, m16n8k16, on tensor cores.
__device__ inline void mma_16816(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
#ifdef TROUPE_CUDA_EMULATED
  emulator::mma_m16n8k16(d, a, b, emulator::Site::current());
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

}  // namespace troupe::kernels::cuda
