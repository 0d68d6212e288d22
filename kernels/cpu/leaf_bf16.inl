// Products of bfloat16, what all ways of computing them share: panels, and the end of a tile. Included inside the
// namespace of one instruction set.
//
// A panel is blocks of 32 along k: [16 pairs][16 columns], a pair being (even k, odd k) in 32 bits. gemm.h has the
// order of the sums.

/// Numbers [begin, begin + 32) of a row of k, rounded, as 16 pairs; 0 behind the row's end.
TROUPE_INLINE Vec row_pairs(const float* row, std::int64_t begin, std::int64_t k) {
  if (begin + 32 <= k) return narrow(load(row + begin), load(row + begin + 16));
  const std::int64_t left = k - begin;
  return narrow(load(row + begin, first(left)), load(row + begin + 16, first(left > 16 ? left - 16 : 0)));
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

void pack_columns_bf16(const float* const* rows, std::int64_t count, std::int64_t column, std::int64_t cols,
                       float* to) {
  const Mask m = first(cols);
  for (std::int64_t r = 0; r < 16; ++r) {
    const Vec even = 2 * r < count ? load(rows[2 * r] + column, m) : zero();
    const Vec odd = 2 * r + 1 < count ? load(rows[2 * r + 1] + column, m) : zero();
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

/// The end of a tile: where its sums are and where they go.
struct Finish {
  const float* sums;
  std::int64_t chain_floats, chains;
  std::int64_t rows, vectors;  ///< rows = 0: nothing to do.
  float* y;
  std::int64_t ldy, cols;
};

template <bool kTree, bool kAdd>
TROUPE_INLINE void finish_as(const Finish& f) {
  const std::int64_t row = 16 * f.vectors;
  const auto end_of = [&](const float* s) __attribute__((always_inline)) {
    const Vec sum = load(s);
    if constexpr (!kTree) return sum;
    return add(add(sum, load(s + f.chain_floats)), add(load(s + 2 * f.chain_floats), load(s + 3 * f.chain_floats)));
  };
  for (std::int64_t j = 0; j < row && j < f.cols; j += 16) {
    const float* s = f.sums + j;
    float* to = f.y + j;
    if (f.cols - j >= 16) {
      for (std::int64_t i = 0; i < f.rows; ++i, s += row, to += f.ldy) {
        const Vec sum = end_of(s);
        store(to, kAdd ? add(load(to), sum) : sum);
      }
    } else {
      const Mask m = first(f.cols - j);
      for (std::int64_t i = 0; i < f.rows; ++i, s += row, to += f.ldy) {
        const Vec sum = end_of(s);
        store(to, kAdd ? add(load(to, m), sum) : sum, m);
      }
    }
  }
}

/// y = (0 + 1) + (2 + 3), or with one chain y (+)= 0. Subnormal sums stay what they are.
__attribute__((noinline)) void finish(const Finish& f, bool add_to_y) {
  if (f.rows == 0) return;
  if (f.chains == kChains) return finish_as<true, false>(f);
  return add_to_y ? finish_as<false, true>(f) : finish_as<false, false>(f);
}

/// What a chain begins with; -0 for one without blocks.
TROUPE_INLINE void fill_sums(float* sums, std::int64_t floats, float value) {
  for (std::int64_t i = 0; i < floats; i += 16) store(sums + i, set(value));
}

TROUPE_INLINE void chains_in_blocks(const MatmulPart& part, std::int64_t (&chain)[kChains + 1]) {
  for (int q = 0; q <= kChains; ++q) chain[q] = (part.bounds[q] + 31) / 32;
}
