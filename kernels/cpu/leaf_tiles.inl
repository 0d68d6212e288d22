// The two register tiles under every product. Included inside the namespace of one instruction set.

/// Adds k steps to kRows x kVectors sums: sums[i][j] += a[k][i] * b[j][k]. a: [k][kRows]; b[j]: [k][16]. kAhead: on
/// the way, asks for the same part of the panel `ahead`.
template <bool kAhead, int kRows, int kVectors>
TROUPE_INLINE void accumulate(Vec (&sums)[kRows][kVectors], const float* a, const float* const* b, std::int64_t begin,
                              std::int64_t end, const float* ahead) {
  const float* column[kVectors];
  for (int j = 0; j < kVectors; ++j) column[j] = b[j] + begin * 16;
  a += begin * kRows;
  if constexpr (kAhead) ahead += begin * 16;
  for (std::int64_t k = begin; k < end; ++k) {
    if constexpr (kAhead) {
      prefetch(ahead);
      ahead += 16;
    }
    Vec w[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) w[j] = load(column[j]);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const Vec x = set(a[i]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sums[i][j] = fma(x, w[j], sums[i][j]);
    }
    a += kRows;
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) column[j] += 16;
  }
}

template <int kRows, int kVectors>
TROUPE_INLINE void clear(Vec (&sums)[kRows][kVectors]) {
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sums[i][j] = zero();
  }
}

/// stash += sums (or = sums), then sums = 0.
template <int kRows, int kVectors>
TROUPE_INLINE void put_aside(float (&stash)[kRows][kVectors][16], Vec (&sums)[kRows][kVectors], bool fresh) {
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      store(stash[i][j], fresh ? sums[i][j] : add(load(stash[i][j]), sums[i][j]));
    }
  }
  clear(sums);
}

template <int kRows, int kVectors>
TROUPE_INLINE void write_tile(Vec (&sums)[kRows][kVectors], float* c, std::int64_t ldc, std::int64_t cols) {
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      if (cols >= 16 * (j + 1)) {
        store(c + i * ldc + 16 * j, sums[i][j]);
      } else if (cols > 16 * j) {
        store(c + i * ldc + 16 * j, sums[i][j], first(cols - 16 * j));
      }
    }
  }
}

/// c[i][0..cols) = sum over k of a[k][i] b[.][k], each element one chain over ascending k.
template <int kRows, int kVectors>
void chain_tile(const float* a, const float* const* b, std::int64_t k, float* c, std::int64_t ldc, std::int64_t cols,
                const float* /*ahead*/) {
  Vec sums[kRows][kVectors];
  clear(sums);
  accumulate<false>(sums, a, b, 0, k, nullptr);
  write_tile(sums, c, ldc, cols);
}

/// The same with k in four fixed quarters, one chain each, added (0 + 1) + (2 + 3). On the way it asks for the panel
/// `ahead`.
template <int kRows, int kVectors>
void quarters_tile(const float* a, const float* const* b, std::int64_t k, float* c, std::int64_t ldc, std::int64_t cols,
                   const float* ahead) {
  constexpr bool kAhead = kVectors < kWideTileVectors;  // a wide tile is the only one of its panels
  alignas(64) float left[kRows][kVectors][16];
  alignas(64) float right[kRows][kVectors][16];
  Vec sums[kRows][kVectors];
  clear(sums);
  accumulate<kAhead>(sums, a, b, 0, k / 4, ahead);
  put_aside(left, sums, true);
  accumulate<kAhead>(sums, a, b, k / 4, k * 2 / 4, ahead);
  put_aside(left, sums, false);
  accumulate<kAhead>(sums, a, b, k * 2 / 4, k * 3 / 4, ahead);
  put_aside(right, sums, true);
  accumulate<kAhead>(sums, a, b, k * 3 / 4, k, ahead);
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      sums[i][j] = add(load(left[i][j]), add(load(right[i][j]), sums[i][j]));
    }
  }
  write_tile(sums, c, ldc, cols);
}

using TileFn = void (*)(const float* a, const float* const* b, std::int64_t k, float* c, std::int64_t ldc,
                        std::int64_t cols, const float* ahead);

/// The tile function for 1 <= rows <= kTileRows and 1, 2 or 4 vectors, as far as registers allow; else null.
template <bool kQuarters, int kVectors, int kRows, int kMaxRows>
TROUPE_INLINE TileFn pick_rows(std::int64_t rows) {
  if (rows == kRows) return kQuarters ? quarters_tile<kRows, kVectors> : chain_tile<kRows, kVectors>;
  if constexpr (kRows < kMaxRows) return pick_rows<kQuarters, kVectors, kRows + 1, kMaxRows>(rows);
  return nullptr;
}
template <bool kQuarters>
TROUPE_INLINE TileFn pick_tile(std::int64_t rows, std::int64_t vectors) {
  if (vectors == kWideTileVectors) return pick_rows<kQuarters, kWideTileVectors, 1, kWideTileRows>(rows);
  if constexpr (kTileVectors > 1) {
    if (vectors == kTileVectors) return pick_rows<kQuarters, kTileVectors, 1, kTileRows>(rows);
  }
  return pick_rows<kQuarters, 1, 1, kTileRows>(rows);
}

/// Vectors a tile of `rows` rows should be wide when `left` of them remain: the widest that registers and `left` allow.
TROUPE_INLINE std::int64_t tile_width(std::int64_t rows, std::int64_t left) {
  if (rows <= kWideTileRows && left >= kWideTileVectors) return kWideTileVectors;
  return left >= kTileVectors ? kTileVectors : 1;
}

/// Rows of B that lie `stride` floats apart.
struct RowRun {
  const float* rows;
  std::int64_t stride;
  std::int64_t count;
};

/// c[i][j] = (c[i][j] +) sum over rows t in [begin, end) of the runs' concatenation of a[i * a_row + t * a_step]
/// B[t][j]: one chain over ascending t, kVectors vectors of columns.
template <int kRows, int kVectors>
void combine_tile(const float* a, std::int64_t a_row, std::int64_t a_step, const RowRun* runs, std::int64_t begin,
                  std::int64_t end, std::int64_t column, float* c, std::int64_t ldc, bool add_to_c) {
  Vec sums[kRows][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sums[i][j] = add_to_c ? load(c + i * ldc + 16 * j) : zero();
  }
  std::int64_t skip = begin;
  for (std::int64_t t = begin; t < end; ++runs) {
    if (skip >= runs->count) {
      skip -= runs->count;
      continue;
    }
    const float* b = runs->rows + skip * runs->stride + column;
    const std::int64_t run_end = t + runs->count - skip;
    const std::int64_t stop = run_end < end ? run_end : end;
    skip = 0;
    const float* x[kRows];
    for (int i = 0; i < kRows; ++i) x[i] = a + i * a_row + t * a_step;
    for (; t < stop; ++t) {
      Vec w[kVectors];
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) w[j] = in_register(load(b + 16 * j));
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
        const Vec p = set(*x[i]);
        x[i] += a_step;
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) sums[i][j] = fma(p, w[j], sums[i][j]);
      }
      b += runs->stride;
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) store(c + i * ldc + 16 * j, sums[i][j]);
  }
}

using CombineFn = void (*)(const float* a, std::int64_t a_row, std::int64_t a_step, const RowRun* runs,
                           std::int64_t begin, std::int64_t end, std::int64_t column, float* c, std::int64_t ldc,
                           bool add_to_c);

template <int kVectors, int kRows, int kMaxRows>
TROUPE_INLINE CombineFn pick_combine_rows(std::int64_t rows) {
  if (rows == kRows) return combine_tile<kRows, kVectors>;
  if constexpr (kRows < kMaxRows) return pick_combine_rows<kVectors, kRows + 1, kMaxRows>(rows);
  return nullptr;
}

/// combine_tile over `cols` columns (a multiple of 16) and up to 6 rows.
TROUPE_INLINE void combine(std::int64_t rows, const float* a, std::int64_t a_row, std::int64_t a_step,
                           const RowRun* runs, std::int64_t begin, std::int64_t end, std::int64_t cols, float* c,
                           std::int64_t ldc, bool add_to_c) {
  for (std::int64_t column = 0; column < cols;) {
    const std::int64_t width = tile_width(rows, (cols - column) / 16);
    CombineFn tile = nullptr;
    if (width == kWideTileVectors) {
      tile = pick_combine_rows<kWideTileVectors, 1, kWideTileRows>(rows);
    } else if (width == 1) {
      tile = pick_combine_rows<1, 1, 6>(rows);
    } else {
      tile = pick_combine_rows<kTileVectors, 1, 6>(rows);
    }
    tile(a, a_row, a_step, runs, begin, end, column, c + column, ldc, add_to_c);
    column += 16 * width;
  }
}
