/// @file
/// The 16-float vector of the CPU kernels, on AVX2 and FMA: two registers of 8. The operations and their bits are those
/// of vector_avx512.h. Included only by isa_avx2.cpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace troupe::kernels::avx2 {

#define TROUPE_INLINE static inline __attribute__((always_inline))

/// Register tiles: 16 registers hold 12 half sums, one column of B and a broadcast.
inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = 1;
inline constexpr int kWideTileRows = 2;
inline constexpr int kWideTileVectors = 2;
inline constexpr int kPairRows = 2;
inline constexpr int kPairVectors = 1;

struct Vec {
  __m256 lo, hi;
};
struct Mask {
  __m256 lo, hi;  ///< All bits of a chosen lane.
};

/// Eight chosen lanes, then eight that are not: any window of 8 chooses its first n.
alignas(64) inline constexpr std::int32_t kWindow[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

TROUPE_INLINE __m256 first_of_8(std::int64_t n) {
  const std::int64_t in_range = n < 0 ? 0 : (n > 8 ? 8 : n);
  return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(kWindow + 8 - in_range)));
}
TROUPE_INLINE Mask first(std::int64_t n) { return {first_of_8(n), first_of_8(n - 8)}; }
TROUPE_INLINE Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TROUPE_INLINE Vec set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TROUPE_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
TROUPE_INLINE Vec load(const float* p, Mask m) {
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)), _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
}
TROUPE_INLINE void store(float* p, Vec v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
TROUPE_INLINE void store(float* p, Vec v, Mask m) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), v.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), v.hi);
}
TROUPE_INLINE void stream(float* p, Vec v) {
  _mm256_stream_ps(p, v.lo);
  _mm256_stream_ps(p + 8, v.hi);
}
TROUPE_INLINE void streams_end() { _mm_sfence(); }
TROUPE_INLINE Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
TROUPE_INLINE Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
TROUPE_INLINE Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
TROUPE_INLINE Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
TROUPE_INLINE Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
TROUPE_INLINE Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
TROUPE_INLINE Vec fnma(Vec a, Vec b, Vec c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
TROUPE_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
TROUPE_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
TROUPE_INLINE Mask less(Vec a, Vec b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
TROUPE_INLINE Mask equal(Vec a, Vec b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
TROUPE_INLINE unsigned bits(Mask m) {
  return static_cast<unsigned>(_mm256_movemask_ps(m.lo)) | static_cast<unsigned>(_mm256_movemask_ps(m.hi)) << 8;
}
TROUPE_INLINE Vec select(Mask m, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
TROUPE_INLINE Vec keep(Mask m, Vec a) { return {_mm256_and_ps(m.lo, a.lo), _mm256_and_ps(m.hi, a.hi)}; }
TROUPE_INLINE Vec abs(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}

TROUPE_INLINE __m256 pow2_of_8(__m256 n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
TROUPE_INLINE Vec pow2(Vec n) { return {pow2_of_8(n.lo), pow2_of_8(n.hi)}; }

TROUPE_INLINE void transpose_8(__m256 (&v)[8]) {
  __m256 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    v[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    v[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    v[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    v[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm256_permute2f128_ps(v[c], v[4 + c], 0x20);
    t[4 + c] = _mm256_permute2f128_ps(v[c], v[4 + c], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) v[i] = t[i];
}

/// v[i] lane j <-> v[j] lane i: four transposes of 8 x 8.
TROUPE_INLINE void transpose(Vec (&v)[16]) {
  __m256 block[8];
  __m256 kept[8];
  for (int i = 0; i < 8; ++i) block[i] = v[i].lo;
  transpose_8(block);
  for (int i = 0; i < 8; ++i) kept[i] = v[i].hi, v[i].lo = block[i];
  for (int i = 0; i < 8; ++i) block[i] = v[8 + i].lo;
  transpose_8(block);
  for (int i = 0; i < 8; ++i) v[i].hi = block[i];
  transpose_8(kept);
  for (int i = 0; i < 8; ++i) v[8 + i].lo = kept[i];
  for (int i = 0; i < 8; ++i) block[i] = v[8 + i].hi;
  transpose_8(block);
  for (int i = 0; i < 8; ++i) v[8 + i].hi = block[i];
}

TROUPE_INLINE __m256 split_exponent_of_8(__m256 x, __m256* e) {
  const __m256i raw = _mm256_castps_si256(x);
  const __m256i exponent = _mm256_srai_epi32(_mm256_sub_epi32(raw, _mm256_set1_epi32(0x3f3504f3)), 23);
  *e = _mm256_cvtepi32_ps(exponent);
  return _mm256_castsi256_ps(_mm256_sub_epi32(raw, _mm256_slli_epi32(exponent, 23)));
}
TROUPE_INLINE Vec split_exponent(Vec x, Vec* e) {
  return {split_exponent_of_8(x.lo, &e->lo), split_exponent_of_8(x.hi, &e->hi)};
}

TROUPE_INLINE float sum_lanes(Vec v) {
  const __m256 eight = _mm256_add_ps(v.lo, v.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
TROUPE_INLINE float max_lane(Vec v) {
  const __m256 eight = _mm256_max_ps(v.lo, v.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
TROUPE_INLINE __m256 rounded_8(__m256 v) {
  const __m256i raw = _mm256_castps_si256(v), exponent = _mm256_set1_epi32(0x7f800000);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(raw, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(raw, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i small = _mm256_cmpeq_epi32(_mm256_and_si256(raw, exponent), _mm256_setzero_si256());
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i sign = _mm256_and_si256(raw, _mm256_set1_epi32(static_cast<int>(0x80000000u)));
  __m256i r = _mm256_blendv_epi8(up, sign, small);
  r = _mm256_blendv_epi8(r, _mm256_or_si256(raw, _mm256_set1_epi32(0x00400000)), nan);
  return _mm256_castsi256_ps(_mm256_and_si256(r, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
TROUPE_INLINE Vec rounded(Vec v) { return {rounded_8(v.lo), rounded_8(v.hi)}; }
TROUPE_INLINE __m256 join_8(__m256 a, __m256 b) {
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(a), 16), _mm256_castps_si256(b)));
}
TROUPE_INLINE Vec join(Vec a, Vec b) {
  const Vec low = rounded(a), high = rounded(b);
  return {join_8(low.lo, high.lo), join_8(low.hi, high.hi)};
}
TROUPE_INLINE __m256 narrow_8(Vec v) {
  const __m256i words = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(v.lo), 16),
                                            _mm256_srli_epi32(_mm256_castps_si256(v.hi), 16));
  return _mm256_castsi256_ps(_mm256_permute4x64_epi64(words, 0xd8));
}
TROUPE_INLINE Vec narrow(Vec a, Vec b) { return {narrow_8(rounded(a)), narrow_8(rounded(b))}; }
TROUPE_INLINE __m256 low_half_8(__m256 v) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 16)); }
TROUPE_INLINE __m256 high_half_8(__m256 v) {
  return _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
TROUPE_INLINE Vec low_half(Vec v) { return {low_half_8(v.lo), low_half_8(v.hi)}; }
TROUPE_INLINE Vec high_half(Vec v) { return {high_half_8(v.lo), high_half_8(v.hi)}; }

TROUPE_INLINE Vec in_register(Vec v) {
  asm("" : "+x"(v.lo), "+x"(v.hi));
  return v;
}
/// Asks for the cache line at p, into the second level.
TROUPE_INLINE void prefetch(const float* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
TROUPE_INLINE float lane0(Vec v) { return _mm256_cvtss_f32(v.lo); }

}  // namespace troupe::kernels::avx2
