// Tiles and parts of products of bfloat16 by AMX: c[16][16] += a[16][16 pairs] b[16 pairs][16]. Included inside the
// namespace of one instruction set. The instructions are spelled out: the compiler's own want literal register numbers.
// Registers: c in 0 to 3, a in 4 and 5, b in 6 and 7.

/// Tiles of c and a get `rows` rows.
TROUPE_INLINE void configure(std::int64_t rows) {
  struct alignas(64) {
    std::uint8_t palette = 1;
    std::uint8_t start = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t bytes[16] = {};
    std::uint8_t rows[16] = {};
  } shape;
  for (int i = 0; i < 8; ++i) {
    shape.bytes[i] = 64;
    shape.rows[i] = static_cast<std::uint8_t>(i < 6 ? rows : 16);
  }
  asm volatile("ldtilecfg %0" ::"m"(shape));
}
TROUPE_INLINE void release() { asm volatile("tilerelease"); }

template <int kC>
TROUPE_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kC));
}
template <int kTo>
TROUPE_INLINE void load_tile(const float* rows) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(std::int64_t{64}), "i"(kTo) : "memory");
}
template <int kC>
TROUPE_INLINE void store_tile(float* rows, std::int64_t floats) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(4 * floats), "i"(kC) : "memory");
}
template <int kC, int kA, int kB>
TROUPE_INLINE void multiply_tile() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

/// What the tiles of one step read, and the shape of a.
struct AmxTile {
  PairTile pairs;
  std::int64_t rows;         ///< Of a tile of a.
  std::int64_t tile_floats;  ///< From one tile of rows to the next.
  const float* ahead;        ///< A panel to ask for on the way.
};

template <int kTiles, int kPanels, int kPanel>
TROUPE_INLINE void multiply_panel(const AmxTile& t, std::int64_t block) {
  constexpr int kB = 6 + kPanel % 2;
  load_tile<kB>(t.pairs.b[kPanel] + block * 256);
  multiply_tile<kPanel, 4, kB>();
  if constexpr (kTiles == 2) {
    if constexpr (kPanel == 0) load_tile<5>(t.pairs.a + t.tile_floats + block * t.rows * 16);
    multiply_tile<kPanels + kPanel, 5, kB>();
  }
  if constexpr (kPanel + 1 < kPanels) multiply_panel<kTiles, kPanels, kPanel + 1>(t, block);
}

template <int kCount, int kC = 0>
TROUPE_INLINE void zero_tiles() {
  zero_tile<kC>();
  if constexpr (kC + 1 < kCount) zero_tiles<kCount, kC + 1>();
}
template <int kTiles, int kPanels, int kC = 0>
TROUPE_INLINE void store_tiles(const AmxTile& t, float* sums) {
  store_tile<kC>(sums + kC / kPanels * t.rows * 16 * kPanels + kC % kPanels * 16, 16 * kPanels);
  if constexpr (kC + 1 < kTiles * kPanels) store_tiles<kTiles, kPanels, kC + 1>(t, sums);
}

template <int kTiles, int kPanels>
void amx_tile(const AmxTile& t) {
  const std::int64_t* chain = t.pairs.chain;
  for (std::int64_t q = 0; q < t.pairs.chains; ++q) {
    float* sums = t.pairs.sums + q * t.pairs.chain_floats;
    if (chain[q] == chain[q + 1]) {
      fill_sums(sums, kTiles * kPanels * t.rows * 16, -0.0f);
      continue;
    }
    zero_tiles<kTiles * kPanels>();
    for (std::int64_t block = chain[q]; block < chain[q + 1]; ++block) {
      if constexpr (kPanels == 4) {  // few rows: memory is the limit
        constexpr std::int64_t kDistance = 4;
        const std::int64_t blocks = chain[t.pairs.chains];
        const std::int64_t far = block + kDistance < blocks ? block + kDistance : block + kDistance + 3 * blocks;
        for (int j = 0; j < 4; ++j) {
          for (int i = 0; i < 16; ++i) prefetch(t.pairs.b[j] + far * 256 + 16 * i);
        }
      }
      load_tile<4>(t.pairs.a + block * t.rows * 16);
      multiply_panel<kTiles, kPanels, 0>(t, block);
      if (t.ahead != nullptr) {
        for (int i = 0; i < 16; ++i) prefetch(t.ahead + block * 256 + 16 * i);
      }
    }
    store_tiles<kTiles, kPanels>(t, sums);
  }
}

/// A tile of 32 rows and columns that is finished on the way: a few rows with every step of the next one, while the
/// multiplier works.
enum class OnTheWay : std::uint8_t { kNothing, kTree, kStore, kAdd };

TROUPE_INLINE OnTheWay on_the_way(const Finish& f, bool add_to_y) {
  if (f.rows != 32 || f.vectors != 2 || f.cols < 32) return OnTheWay::kNothing;
  if (f.chains == kChains) return OnTheWay::kTree;
  return add_to_y ? OnTheWay::kAdd : OnTheWay::kStore;
}

template <OnTheWay kWhat>
TROUPE_INLINE void finish_row(const Finish& f, std::int64_t i) {
  for (std::int64_t j = 0; j < 32; j += 16) {
    const float* s = f.sums + i * 32 + j;
    float* to = f.y + i * f.ldy + j;
    Vec sum = load(s);
    if constexpr (kWhat == OnTheWay::kTree) sum = add(add(sum, load(s + 1024)), add(load(s + 2048), load(s + 3072)));
    if constexpr (kWhat == OnTheWay::kAdd) sum = add(load(to), sum);
    store(to, sum);
  }
}

/// amx_tile<2, 2> with every tile asked for as soon as its register is free.
template <OnTheWay kWhat>
void amx_square(const AmxTile& t, const Finish& before) {
  const std::int64_t* chain = t.pairs.chain;
  const std::int64_t last = chain[t.pairs.chains] - 1;
  const std::int64_t a_block = t.rows * 16;
  const std::int64_t rows_a_step = last < 0 ? 32 : (32 + last) / (last + 1);
  const float* a = t.pairs.a;
  const float* a2 = a + t.tile_floats;
  const float* b = t.pairs.b[0];
  const float* b2 = t.pairs.b[1];
  std::int64_t row = 0;
  load_tile<4>(a);
  load_tile<6>(b);
  load_tile<7>(b2);
  load_tile<5>(a2);
  for (std::int64_t q = 0; q < t.pairs.chains; ++q) {
    float* sums = t.pairs.sums + q * t.pairs.chain_floats;
    if (chain[q] == chain[q + 1]) {
      fill_sums(sums, 4 * t.rows * 16, -0.0f);
      continue;
    }
    zero_tiles<4>();
    for (std::int64_t block = chain[q]; block < chain[q + 1]; ++block) {
      const std::int64_t next = block < last ? block + 1 : block;
      multiply_tile<0, 4, 6>();
      multiply_tile<1, 4, 7>();
      load_tile<4>(a + next * a_block);
      multiply_tile<2, 5, 6>();
      load_tile<6>(b + next * 256);
      multiply_tile<3, 5, 7>();
      load_tile<7>(b2 + next * 256);
      load_tile<5>(a2 + next * a_block);
      if (t.ahead != nullptr) {
        for (int i = 0; i < 16; ++i) prefetch(t.ahead + block * 256 + 16 * i);
      }
      if constexpr (kWhat != OnTheWay::kNothing) {
        for (const std::int64_t end = row + rows_a_step < 32 ? row + rows_a_step : 32; row < end; ++row)
          finish_row<kWhat>(before, row);
      }
    }
    store_tiles<2, 2>(t, sums);
  }
}

using AmxTileFn = void (*)(const AmxTile&);
TROUPE_INLINE AmxTileFn pick_amx_tile(std::int64_t tiles, std::int64_t panels) {
  if (tiles == 2) return amx_tile<2, 1>;
  if (panels == 4) return amx_tile<1, 4>;
  return panels == 2 ? amx_tile<1, 2> : amx_tile<1, 1>;
}

/// Computes a tile and finishes the one before it.
TROUPE_INLINE void run_and_finish(const AmxTile& tile, std::int64_t tiles, std::int64_t panels, const Finish& before,
                                  bool add_to_y) {
  const OnTheWay what = on_the_way(before, add_to_y);
  if (tiles != 2 || panels != 2) {
    pick_amx_tile(tiles, panels)(tile);
    return finish(before, add_to_y);
  }
  if (what == OnTheWay::kTree) return amx_square<OnTheWay::kTree>(tile, before);
  if (what == OnTheWay::kStore) return amx_square<OnTheWay::kStore>(tile, before);
  if (what == OnTheWay::kAdd) return amx_square<OnTheWay::kAdd>(tile, before);
  finish(before, add_to_y);
  amx_square<OnTheWay::kNothing>(tile, before);
}

/// Where rows [0, m) of a product go.
struct AmxTarget {
  float* y;
  std::int64_t ldy, cols;
  bool add;
  std::int64_t panel_floats;  ///< From panel to panel.
};

/// m rows, packed as tiles of `rows`, times panels [begin, end) of `blocks` blocks; configured for `rows`.
TROUPE_INLINE void multiply_amx(PairTile pairs, std::int64_t m, std::int64_t rows, const float* panels,
                                std::int64_t blocks, std::int64_t begin, std::int64_t end, const AmxTarget& target) {
  alignas(64) float sums[2][kChains * 4 * 256];  // a tile is finished while the next one is computed
  const float* packed = pairs.a;
  const std::int64_t tiles = (m + rows - 1) / rows;
  AmxTile tile{pairs, rows, blocks * rows * 16, nullptr};
  Finish before{};
  int turn = 0;
  for (std::int64_t panel = begin; panel < end;) {
    const std::int64_t left = end - panel;
    const std::int64_t width = tiles == 1 && left >= 4 ? 4 : (left >= 2 ? 2 : 1);
    const float* b[4];
    for (std::int64_t j = 0; j < width; ++j) b[j] = panels + (panel + j) * target.panel_floats;
    tile.pairs.b = b;
    std::int64_t ahead = panel + width;
    for (std::int64_t t = 0; t < tiles; t += 2, ++ahead) {
      const std::int64_t count = tiles - t < 2 ? 1 : 2;
      const bool asks = tiles > 1 && ahead < panel + 2 * width && ahead < end;
      tile.pairs.a = packed + t * tile.tile_floats;
      tile.pairs.chain_floats = count * rows * 16 * width;
      tile.ahead = asks ? panels + ahead * target.panel_floats : nullptr;
      tile.pairs.sums = sums[turn ^= 1];
      run_and_finish(tile, count, width, before, target.add);
      const std::int64_t valid = m - t * rows < count * rows ? m - t * rows : count * rows;
      before = {tile.pairs.sums, tile.pairs.chain_floats,
                pairs.chains,    valid,
                width,           target.y + t * rows * target.ldy + panel * 16,
                target.ldy,      target.cols - panel * 16};
    }
    panel += width;
  }
  finish(before, target.add);
}

/// Weights of so many bytes stay in the second-level cache. Where y is wide, they pass by a pair of tiles of rows, and
/// rows of y are written from end to end.
inline constexpr std::int64_t kSmallWeights = 1 << 20;

/// m rows as tiles of `rows`, rounded; the last one filled up with zeros.
TROUPE_INLINE void pack_amx_rows(const float* x, std::int64_t ldx, std::int64_t m, std::int64_t rows, std::int64_t k,
                                 float* packed) {
  for (std::int64_t row = 0; row < m; row += rows) {
    for (std::int64_t begin = 0; begin < k; begin += 32) {
      for (std::int64_t i = row; i < row + rows; ++i, packed += 16)
        store(packed, i < m ? row_pairs(x + i * ldx, begin, k) : zero());
    }
  }
}

void matmul_part_amx(const MatmulPart& part) {
  std::int64_t chain[kChains + 1];
  chains_in_blocks(part, chain);
  const std::int64_t blocks = padded(part.k) / 32;
  std::int64_t configured = 0;
  const bool small = part.n >= 2 * part.k && (part.panel_end - part.panel_begin) * blocks * 1024 <= kSmallWeights;
  const std::int64_t step = small ? 32 : part.block_rows;
  for (std::int64_t begin = 0; begin < part.m; begin += step) {
    const std::int64_t m = part.m - begin < step ? part.m - begin : step;
    const std::int64_t tiles = (m + 15) / 16;
    const std::int64_t rows = (m + tiles - 1) / tiles;
    if (rows != configured) configure(rows);
    configured = rows;
    pack_amx_rows(part.x + begin * part.ldx, part.ldx, m, rows, part.k, part.scratch);
    multiply_amx({part.scratch, nullptr, chain, kChains, nullptr, 0}, m, rows, part.panels, blocks, part.panel_begin,
                 part.panel_end, {part.y + begin * part.ldy, part.ldy, part.n, false, blocks * 256});
  }
  release();
}

void rows_part_amx(const RowsPart& part) {
  const std::int64_t blocks = padded(part.k) / 32;
  const std::int64_t chain[] = {0, blocks};
  const std::int64_t tiles = (part.m + 15) / 16;
  const std::int64_t rows = (part.m + tiles - 1) / tiles;
  configure(rows);
  pack_amx_rows(part.x, part.ldx, part.m, rows, part.k, part.scratch);
  multiply_amx({part.scratch, nullptr, chain, 1, nullptr, 0}, part.m, rows, part.panels, blocks, 0,
               (part.n + 15) / 16, {part.y, part.ldy, part.n, false, part.panel_floats});
  release();
}

/// 32 rows of n columns of dy, n <= 16: a block of a tile of 16 rows.
TROUPE_INLINE void pack_amx_columns(const GradientPart& part, std::int64_t block, std::int64_t begin, std::int64_t n,
                                    float* packed) {
  const Mask m = first(n);
  const float* dy = part.dy + begin;
  const auto row = [&](std::int64_t t) { return t < part.rows ? load(dy + t * part.ldy, m) : zero(); };
  Vec v[16];
  for (int r = 0; r < 16; ++r) v[r] = join(row(block * 32 + 2 * r), row(block * 32 + 2 * r + 1));
  transpose(v);
  for (int r = 0; r < 16; ++r) store(packed + 16 * r, v[r]);
}

void gradient_part_amx(const GradientPart& part) {
  const std::int64_t blocks = padded(part.rows) / 32;
  const std::int64_t chain[] = {0, blocks};
  configure(16);
  for (std::int64_t begin = part.begin; begin < part.end; begin += kGradientColumns) {
    const std::int64_t n = part.end - begin < kGradientColumns ? part.end - begin : kGradientColumns;
    for (std::int64_t block = 0; block < blocks; ++block) {  // rows of dy lie pages apart
      for (std::int64_t i = 0; i < n; i += 16)
        pack_amx_columns(part, block, begin + i, n - i < 16 ? n - i : 16,
                         part.scratch + (i * blocks + 16 * block) * 16);
    }
    multiply_amx({part.scratch, nullptr, chain, 1, nullptr, 0}, n, 16, part.panels, blocks, 0, (part.k + 15) / 16,
                 {part.dw + begin * part.k, part.k, part.k, part.add, blocks * 256});
  }
  release();
}

constexpr ProductTable products() {
  return {32, pack_panel_bf16, pack_columns_bf16, matmul_part_amx, gradient_part_amx, rows_part_amx};
}
