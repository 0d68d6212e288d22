/// @file
/// The 16-float vector of the CPU kernels, on AVX-512. vector_avx2.h has the same operations on pairs of 8 floats; the
/// two give the same bits. Included only by isa_avx512.cpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace troupe::kernels::avx512 {

#define TROUPE_INLINE static inline __attribute__((always_inline))

/// Register tiles: 32 registers hold 24 sums, 4 columns of B and a broadcast. (8 x 3 loads less, and is 2 to 4 % slower.)
inline constexpr int kTileRows = 12;  ///< Rows of a tall tile, 2 vectors wide.
inline constexpr int kTileVectors = 2;
inline constexpr int kWideTileRows = 6;  ///< Rows of a wide tile, 4 vectors wide: one row still has 4 chains in flight.
inline constexpr int kWideTileVectors = 4;
inline constexpr int kPairRows = 6;  ///< A tile of bfloat16 has two sums for each of its elements.
inline constexpr int kPairVectors = 2;

using Vec = __m512;
using Mask = __mmask16;

TROUPE_INLINE Mask first(std::int64_t n) {
  return n >= 16 ? static_cast<Mask>(0xffff) : static_cast<Mask>((1u << n) - 1u);
}
TROUPE_INLINE Vec zero() { return _mm512_setzero_ps(); }
TROUPE_INLINE Vec set(float x) { return _mm512_set1_ps(x); }
TROUPE_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
TROUPE_INLINE Vec load(const float* p, Mask m) { return _mm512_maskz_loadu_ps(m, p); }
TROUPE_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
TROUPE_INLINE void store(float* p, Vec v, Mask m) { _mm512_mask_storeu_ps(p, m, v); }
/// Past the caches, to memory that is not read soon; p is a multiple of 64 bytes. Others see it after `streams_end`.
TROUPE_INLINE void stream(float* p, Vec v) { _mm512_stream_ps(p, v); }
TROUPE_INLINE void streams_end() { _mm_sfence(); }
TROUPE_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
TROUPE_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
TROUPE_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
TROUPE_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
TROUPE_INLINE Vec sqrt(Vec a) { return _mm512_sqrt_ps(a); }
TROUPE_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }    ///< a b + c
TROUPE_INLINE Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }  ///< c - a b
TROUPE_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }                ///< b where either is NaN.
TROUPE_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }                ///< b where either is NaN.
TROUPE_INLINE Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
TROUPE_INLINE Mask equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
TROUPE_INLINE unsigned bits(Mask m) { return m; }
TROUPE_INLINE Vec select(Mask m, Vec a, Vec b) { return _mm512_mask_blend_ps(m, b, a); }  ///< m ? a : b
TROUPE_INLINE Vec keep(Mask m, Vec a) { return _mm512_maskz_mov_ps(m, a); }               ///< m ? a : 0
TROUPE_INLINE Vec abs(Vec a) { return _mm512_abs_ps(a); }

/// 2^n for whole n in [-126, 127].
TROUPE_INLINE Vec pow2(Vec n) {
  const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
}

/// v[i] lane j <-> v[j] lane i.
TROUPE_INLINE void transpose(Vec (&v)[16]) {
  Vec t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // v[i + c]: column 4 b + c of rows i..i+3 in 128-bit block b
    const __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
    const __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
    v[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    v[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    v[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    v[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {  // a 4 x 4 transpose of 128-bit blocks
    const __m512 low = _mm512_shuffle_f32x4(v[c], v[4 + c], 0x44), high = _mm512_shuffle_f32x4(v[c], v[4 + c], 0xee);
    const __m512 low2 = _mm512_shuffle_f32x4(v[8 + c], v[12 + c], 0x44);
    const __m512 high2 = _mm512_shuffle_f32x4(v[8 + c], v[12 + c], 0xee);
    t[c] = _mm512_shuffle_f32x4(low, low2, 0x88);
    t[4 + c] = _mm512_shuffle_f32x4(low, low2, 0xdd);
    t[8 + c] = _mm512_shuffle_f32x4(high, high2, 0x88);
    t[12 + c] = _mm512_shuffle_f32x4(high, high2, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

/// Splits positive normal x into f 2^e with f in [sqrt(1/2), sqrt(2)).
TROUPE_INLINE Vec split_exponent(Vec x, Vec* e) {
  const __m512i raw = _mm512_castps_si512(x);
  const __m512i shifted = _mm512_sub_epi32(raw, _mm512_set1_epi32(0x3f3504f3));
  const __m512i exponent = _mm512_srai_epi32(shifted, 23);
  *e = _mm512_cvtepi32_ps(exponent);
  return _mm512_castsi512_ps(_mm512_sub_epi32(raw, _mm512_slli_epi32(exponent, 23)));
}

/// Sums lanes i and i + 8, then i and i + 4, then i and i + 2, then the last two.
TROUPE_INLINE float sum_lanes(Vec v) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
TROUPE_INLINE float max_lane(Vec v) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
/// To the nearest bfloat16, ties to even, as a float: the lower 16 bits are 0. Numbers below the smallest normal one
/// become 0, NaN stays NaN.
TROUPE_INLINE Vec rounded(Vec v) {
  const __m512i raw = _mm512_castps_si512(v), top = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(raw, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_add_epi32(raw, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 normal = _mm512_test_epi32_mask(raw, _mm512_set1_epi32(0x7f800000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i sign = _mm512_and_si512(raw, _mm512_set1_epi32(static_cast<int>(0x80000000u)));
  __m512i r = _mm512_mask_and_epi32(sign, normal, up, top);
  r = _mm512_mask_and_epi32(r, nan, _mm512_or_si512(raw, _mm512_set1_epi32(0x00400000)), top);
  return _mm512_castsi512_ps(r);
}
#ifdef __AVX512BF16__
/// Pairs of neighbours, rounded: (a[0], a[1]), ..., (b[14], b[15]).
TROUPE_INLINE Vec narrow(Vec a, Vec b) { return _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(b, a)); }
/// Pairs of bfloat16 in 32 bits: a[i] (low half) and b[i] (high half), rounded.
TROUPE_INLINE Vec join(Vec a, Vec b) {
  alignas(64) static constexpr std::int16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(kOrder);
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a)));
}
#else
TROUPE_INLINE Vec join(Vec a, Vec b) {
  const __m512i low = _mm512_castps_si512(rounded(a)), high = _mm512_castps_si512(rounded(b));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(low, 16), high));
}
TROUPE_INLINE Vec narrow(Vec a, Vec b) {
  const __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(rounded(a)), 16));
  const __m256i high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(rounded(b)), 16));
  return _mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
}
#endif
/// The halves of pairs, as floats.
TROUPE_INLINE Vec low_half(Vec v) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), 16)); }
TROUPE_INLINE Vec high_half(Vec v) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

/// v, kept in a register: without it GCC reloads an operand from memory at each of its uses, and loads become the
/// limit.
TROUPE_INLINE Vec in_register(Vec v) {
  asm("" : "+v"(v));
  return v;
}
/// Asks for the cache line at p, into the second level.
TROUPE_INLINE void prefetch(const float* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
TROUPE_INLINE float lane0(Vec v) { return _mm512_cvtss_f32(v); }

}  // namespace troupe::kernels::avx512
