// Products of bfloat16, what all ways of computing them share: panels, and the end of a tile. Included inside the
// namespace of one instruction set.
//
// A panel is blocks of 32 along k: [16 pairs][16 columns], a pair being (even k, odd k) in 32 bits. gemm.h has the order
// of the sums.

/// Numbers [begin, begin + 32) of a row of k, rounded, as 16 pairs; 0 behind the row's end.
TROUPE_INLINE Vec row_pairs(const float* row, std::int64_t begin, std::int64_t k) {
  if (begin + 32 <= k) return narrow(rounded(load(row + begin)), rounded(load(row + begin + 16)));
  const std::int64_t left = k - begin;
  return narrow(rounded(load(row + begin, first(left))), rounded(load(row + begin + 16, first(left > 16 ? left - 16 : 0))));
}

void pack_panel_bf16(const float* const* rows, std::int64_t count, std::int64_t k, float* panel) {
  for (std::int64_t begin = 0; begin < k; begin += 32, panel += 256) {
    Vec v[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = i < count ? row_pairs(rows[i], begin, k) : zero();
    transpose(v);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) store(panel + 16 * r, v[r]);
  }
}

void pack_columns_bf16(const float* const* rows, std::int64_t count, std::int64_t column, std::int64_t cols, float* to) {
  const Mask m = first(cols);
  for (std::int64_t r = 0; r < 16; ++r) {
    const Vec even = 2 * r < count ? rounded(load(rows[2 * r] + column, m)) : zero();
    const Vec odd = 2 * r + 1 < count ? rounded(load(rows[2 * r + 1] + column, m)) : zero();
    store(to + 16 * r, join(even, odd));
  }
}

/// The sums of a tile's chains and where they go.
struct PairTile {
  const float* a;             ///< Packed rows.
  const float* const* b;      ///< Panels.
  const std::int64_t* chain;  ///< The chains' bounds, in blocks.
  std::int64_t chains;        ///< 1 or 4.
  float* sums;                ///< [rows][16 * vectors] of every chain,
  std::int64_t chain_floats;  ///< these apart.
};

/// y = (0 + 1) + (2 + 3), or with one chain y (+)= 0. Subnormal sums stay what they are.
__attribute__((noinline)) void finish_tile(const PairTile& t, std::int64_t rows, std::int64_t vectors, float* y,
                                           std::int64_t ldy, std::int64_t cols, bool add_to_y) {
  const std::int64_t row = 16 * vectors;
  const std::int64_t chain = t.chain_floats;
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* s = t.sums + i * row;
    for (std::int64_t j = 0; j < row && j < cols; j += 16) {
      Vec sum = load(s + j);
      if (t.chains == kChains)
        sum = add(add(sum, load(s + j + chain)), add(load(s + j + 2 * chain), load(s + j + 3 * chain)));
      float* to = y + i * ldy + j;
      if (cols - j >= 16) {
        store(to, add_to_y ? add(load(to), sum) : sum);
      } else {
        const Mask m = first(cols - j);
        store(to, add_to_y ? add(load(to, m), sum) : sum, m);
      }
    }
  }
}

/// -0 for a chain without blocks.
TROUPE_INLINE void fill_sums(float* sums, std::int64_t floats, float value) {
  for (std::int64_t i = 0; i < floats; i += 16) store(sums + i, set(value));
}

TROUPE_INLINE void chains_in_blocks(const MatmulPart& part, std::int64_t (&chain)[kChains + 1]) {
  for (int q = 0; q <= kChains; ++q) chain[q] = (part.bounds[q] + 31) / 32;
}
