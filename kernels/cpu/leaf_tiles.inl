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
TROUPE_INLINE void fill(Vec (&sums)[kRows][kVectors], Vec value) {
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sums[i][j] = value;
  }
}

/// What a chain begins with: 0. An empty one is -0, which adds nothing to any number.
TROUPE_INLINE Vec start_of(std::int64_t begin, std::int64_t end) { return set(begin == end ? -0.0f : 0.0f); }

/// stash += sums (or = sums).
template <int kRows, int kVectors>
TROUPE_INLINE void put_aside(float (&stash)[kRows][kVectors][16], Vec (&sums)[kRows][kVectors], bool fresh) {
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      store(stash[i][j], fresh ? sums[i][j] : add(load(stash[i][j]), sums[i][j]));
    }
  }
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

/// How a tile sums over k. kChain: one chain, in ascending order. kAdded: the same, added to what is there.
/// kQuarters: the chains between bounds, one after the other, added (0 + 1) + (2 + 3).
enum class Order : std::uint8_t { kChain, kAdded, kQuarters };

/// What a tile computes: c[i][0..cols) = sum over k of a[k][i] b[.][k].
struct Tile {
  const float* a;
  const float* const* b;
  const std::int64_t* bounds;  ///< Of one chain, or of four.
  float* c;
  std::int64_t ldc, cols;
  const float* ahead;  ///< kQuarters: a panel to ask for on the way, or null.
};

template <Order kOrder, int kRows, int kVectors>
void chain_tile(const Tile& t) {
  Vec sums[kRows][kVectors];
  fill(sums, zero());
  accumulate<false>(sums, t.a, t.b, t.bounds[0], t.bounds[1], nullptr);
  if constexpr (kOrder == Order::kAdded) {
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        if (t.cols > 16 * j) sums[i][j] = add(load(t.c + i * t.ldc + 16 * j, first(t.cols - 16 * j)), sums[i][j]);
      }
    }
  }
  write_tile(sums, t.c, t.ldc, t.cols);
}

template <bool kAhead, int kRows, int kVectors>
TROUPE_INLINE void quarters_tile_as(const Tile& t) {
  alignas(64) float left[kRows][kVectors][16];
  alignas(64) float right[kRows][kVectors][16];
  const std::int64_t* k = t.bounds;
  Vec sums[kRows][kVectors];
  fill(sums, start_of(k[0], k[1]));
  accumulate<kAhead>(sums, t.a, t.b, k[0], k[1], t.ahead);
  put_aside(left, sums, true);
  fill(sums, start_of(k[1], k[2]));
  accumulate<kAhead>(sums, t.a, t.b, k[1], k[2], t.ahead);
  put_aside(left, sums, false);
  fill(sums, start_of(k[2], k[3]));
  accumulate<kAhead>(sums, t.a, t.b, k[2], k[3], t.ahead);
  put_aside(right, sums, true);
  fill(sums, start_of(k[3], k[4]));
  accumulate<kAhead>(sums, t.a, t.b, k[3], k[4], t.ahead);
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      sums[i][j] = add(load(left[i][j]), add(load(right[i][j]), sums[i][j]));
    }
  }
  write_tile(sums, t.c, t.ldc, t.cols);
}

template <int kRows, int kVectors>
void quarters_tile(const Tile& t) {
  if constexpr (kVectors < kWideTileVectors) {  // a wide tile is the only one of its panels
    if (t.ahead != nullptr) return quarters_tile_as<true, kRows, kVectors>(t);
  }
  quarters_tile_as<false, kRows, kVectors>(t);
}

using TileFn = void (*)(const Tile&);

/// The tile function for 1 <= rows <= kTileRows and 1, 2 or 4 vectors, as far as registers allow; else null.
template <Order kOrder, int kVectors, int kRows, int kMaxRows>
TROUPE_INLINE TileFn pick_rows(std::int64_t rows) {
  if (rows == kRows) {
    if constexpr (kOrder == Order::kQuarters) return quarters_tile<kRows, kVectors>;
    return chain_tile<kOrder, kRows, kVectors>;
  }
  if constexpr (kRows < kMaxRows) return pick_rows<kOrder, kVectors, kRows + 1, kMaxRows>(rows);
  return nullptr;
}
template <Order kOrder>
TROUPE_INLINE TileFn pick_tile(std::int64_t rows, std::int64_t vectors) {
  if (vectors == kWideTileVectors) return pick_rows<kOrder, kWideTileVectors, 1, kWideTileRows>(rows);
  if constexpr (kTileVectors > 1) {
    if (vectors == kTileVectors) return pick_rows<kOrder, kTileVectors, 1, kTileRows>(rows);
  }
  return pick_rows<kOrder, 1, 1, kTileRows>(rows);
}

/// Vectors a tile of `rows` rows should be wide when `left` of them remain: the widest that registers and `left` allow.
TROUPE_INLINE std::int64_t tile_width(std::int64_t rows, std::int64_t left) {
  if (rows <= kWideTileRows && left >= kWideTileVectors) return kWideTileVectors;
  return left >= kTileVectors ? kTileVectors : 1;
}

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
