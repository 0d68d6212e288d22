// Blocks of bfloat16 by float32 fused multiply-adds, which are exact in the product. Included inside the namespace of
// one instruction set.

inline constexpr std::int64_t kPairFloats = 32;  ///< Floats of a packed row in a block: [32][rows].

/// Rows of x as one tile: [padded k][rows], rounded.
TROUPE_INLINE void pack_pair_rows(const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t k, float* packed) {
  const std::int64_t all = padded(k) * rows;
  transpose_rows([x, ldx](int i) { return x + i * ldx; }, rows, k, packed, rows);
  for (std::int64_t i = 0; i < all; i += 16) {
    const Mask inside = first(k * rows - i > 0 ? k * rows - i : 0);
    store(packed + i, rounded(load(packed + i, inside)), first(all - i));
  }
}

/// Columns of dy as one tile: [padded rows of dy][n].
TROUPE_INLINE void pack_pair_columns(const float* dy, std::int64_t ldy, std::int64_t rows, std::int64_t n,
                                     float* packed) {
  const Mask m = first(n);
  for (std::int64_t t = 0; t < padded(rows); ++t, packed += n)
    store(packed, t < rows ? rounded(load(dy + t * ldy, m)) : zero(), m);
}

template <int kRows, int kVectors>
TROUPE_INLINE void add_pairs(const float* a, const float* const* b, std::int64_t block, Vec (&even)[kRows][kVectors],
                             Vec (&odd)[kRows][kVectors]) {
  a += block * kPairFloats * kRows;
  for (std::int64_t r = 0; r < 16; ++r, a += 2 * kRows) {
    Vec low[kVectors];
    Vec high[kVectors];
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      const Vec pairs = load(b[j] + block * 256 + r * 16);
      low[j] = low_half(pairs);
      high[j] = high_half(pairs);
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const Vec x = set(a[i]);
      const Vec z = set(a[kRows + i]);
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) {
        even[i][j] = fma(x, low[j], even[i][j]);
        odd[i][j] = fma(z, high[j], odd[i][j]);
      }
    }
  }
}
