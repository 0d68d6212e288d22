// Tiles of products of bfloat16 by AMX: c[16][16] += a[16][16 pairs] b[16 pairs][16]; few rows, and the edges of larger
// products. Included inside the namespace of one instruction set. The instructions are spelled out: the compiler's own
// want literal register numbers. Registers: c in 0 to 3, a in 4 and 5, b in 6 and 7.

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
/// kOnce: what is read will not be read again soon, and need not displace others in the first-level cache.
template <int kTo, bool kOnce>
TROUPE_INLINE void load_tile_of(const float* rows) {
  if constexpr (!kOnce) return load_tile<kTo>(rows);
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(std::int64_t{64}), "i"(kTo) : "memory");
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
    }
    store_tiles<kTiles, kPanels>(t, sums);
  }
}

using AmxTileFn = void (*)(const AmxTile&);
TROUPE_INLINE AmxTileFn pick_amx_tile(std::int64_t tiles, std::int64_t panels) {
  if (tiles == 2) return panels == 2 ? amx_tile<2, 2> : amx_tile<2, 1>;
  if (panels == 4) return amx_tile<1, 4>;
  return panels == 2 ? amx_tile<1, 2> : amx_tile<1, 1>;
}

/// Where rows [0, m) of a product go.
struct AmxTarget {
  float* y;
  std::int64_t ldy, cols;
  bool add;
  std::int64_t panel_floats;  ///< From panel to panel.
};

/// m rows, packed as tiles of `rows`, times panels [begin, end) of `blocks` blocks; configured for `rows`.
TROUPE_INLINE void multiply_edges(PairTile pairs, std::int64_t m, std::int64_t rows, const float* panels,
                                  std::int64_t blocks, std::int64_t begin, std::int64_t end, const AmxTarget& target) {
  alignas(64) float sums[kChains * 4 * 256];
  const float* packed = pairs.a;
  const std::int64_t tiles = (m + rows - 1) / rows;
  AmxTile tile{pairs, rows, blocks * rows * 16};
  tile.pairs.sums = sums;
  for (std::int64_t panel = begin; panel < end;) {
    const std::int64_t left = end - panel;
    const std::int64_t width = tiles == 1 && left >= 4 ? 4 : (left >= 2 ? 2 : 1);
    const float* b[4];
    for (std::int64_t j = 0; j < width; ++j) b[j] = panels + (panel + j) * target.panel_floats;
    tile.pairs.b = b;
    for (std::int64_t t = 0; t < tiles; t += 2) {
      const std::int64_t count = tiles - t < 2 ? 1 : 2;
      tile.pairs.a = packed + t * tile.tile_floats;
      tile.pairs.chain_floats = count * rows * 16 * width;
      pick_amx_tile(count, width)(tile);
      const std::int64_t valid = m - t * rows < count * rows ? m - t * rows : count * rows;
      finish({sums, tile.pairs.chain_floats, pairs.chains, valid, width,
              target.y + t * rows * target.ldy + panel * 16, target.ldy, target.cols - panel * 16},
             target.add);
    }
    panel += width;
  }
}
