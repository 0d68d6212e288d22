// Blocks of bfloat16 by AVX512-BF16. dpbf16ps adds the product of the high halves, then that of the low ones, to one
// sum: pairs of neighbouring even numbers (and of odd ones) are put together, the earlier one high. Included inside the
// namespace of one instruction set.

inline constexpr std::int64_t kPairFloats = 16;  ///< Floats of a packed row in a block: [8][even, odd][rows].

TROUPE_INLINE Vec dot(Vec sum, Vec a, Vec b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}

/// The even numbers of two pairs; the odd ones.
TROUPE_INLINE Vec evens(Vec earlier, Vec later) {
  return _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_castps_si512(later),
                                                     _mm512_slli_epi32(_mm512_castps_si512(earlier), 16)));
}
TROUPE_INLINE Vec odds(Vec earlier, Vec later) {
  return _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(later), 16),
                                                     _mm512_castps_si512(earlier)));
}

/// Rows of x as one tile, blocks of [8][even, odd][rows].
TROUPE_INLINE void pack_pair_rows(const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t k, float* packed) {
  const __m512i order = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0b0a0f0e09080d0c, 0x0302070601000504));  // 2, 0, 3, 1
  const Mask m = first(rows);
  for (std::int64_t begin = 0; begin < k; begin += 32, packed += kPairFloats * rows) {
    Vec v[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      v[i] = zero();
      if (i >= rows) continue;
      const Vec pairs = row_pairs(x + i * ldx, begin, k);
      v[i] = _mm512_castsi512_ps(_mm512_shuffle_epi8(_mm512_castps_si512(pairs), order));
    }
    transpose(v);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) store(packed + r * rows, v[r], m);
  }
}

/// Columns of dy as one tile.
TROUPE_INLINE void pack_pair_columns(const float* dy, std::int64_t ldy, std::int64_t rows, std::int64_t n,
                                     float* packed) {
  const Mask m = first(n);
  const auto row = [&](std::int64_t t) { return t < rows ? load(dy + t * ldy, m) : zero(); };
  for (std::int64_t t = 0; t < padded(rows); t += 4, packed += 2 * n) {
    store(packed, join(row(t + 2), row(t)), m);
    store(packed + n, join(row(t + 3), row(t + 1)), m);
  }
}

template <int kRows, int kVectors>
TROUPE_INLINE void add_pairs(const float* a, const float* const* b, std::int64_t block, Vec (&even)[kRows][kVectors],
                             Vec (&odd)[kRows][kVectors]) {
  a += block * kPairFloats * kRows;
  for (std::int64_t r = 0; r < 16; r += 2, a += 2 * kRows) {
    Vec e[kVectors];
    Vec o[kVectors];
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      const Vec earlier = load(b[j] + block * 256 + r * 16);
      const Vec later = load(b[j] + block * 256 + r * 16 + 16);
      e[j] = evens(earlier, later);
      o[j] = odds(earlier, later);
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const Vec x = set(a[i]);
      const Vec z = set(a[kRows + i]);
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) {
        even[i][j] = dot(even[i][j], x, e[j]);
        odd[i][j] = dot(odd[i][j], z, o[j]);
      }
    }
  }
}
