// Tiles and parts of products of bfloat16 on vector registers. Included inside the namespace of one instruction set,
// behind the functions that pack and add blocks.

/// While it lives, results below the smallest normal number are 0, as they are in instructions for bfloat16.
class Flushing {
 public:
  Flushing() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~Flushing() { _mm_setcsr(before_); }
  Flushing(const Flushing&) = delete;
  Flushing& operator=(const Flushing&) = delete;

 private:
  unsigned before_;
};

template <int kRows, int kVectors>
__attribute__((noinline)) void pair_tile(const PairTile& t) {
  constexpr std::int64_t kFloats = kRows * kVectors * 16;
  for (std::int64_t q = 0; q < t.chains; ++q) {
    float* sums = t.sums + q * kFloats;
    fill_sums(sums, kFloats, t.chain[q] == t.chain[q + 1] ? -0.0f : 0.0f);
    for (std::int64_t block = t.chain[q]; block < t.chain[q + 1]; ++block) {
      Vec even[kRows][kVectors];
      Vec odd[kRows][kVectors];
      fill(even, zero());
      fill(odd, zero());
      add_pairs(t.a, t.b, block, even, odd);
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) {
          float* to = sums + (i * kVectors + j) * 16;
          store(to, add(load(to), add(even[i][j], odd[i][j])));
        }
      }
    }
  }
}

using PairTileFn = void (*)(const PairTile&);

template <int kVectors, int kRows>
TROUPE_INLINE PairTileFn pick_pair_rows(std::int64_t rows) {
  if (rows == kRows) return pair_tile<kRows, kVectors>;
  if constexpr (kRows < kPairRows) return pick_pair_rows<kVectors, kRows + 1>(rows);
  return nullptr;
}

/// What becomes of a product: rows [0, m) of y.
struct PairTarget {
  float* y;
  std::int64_t ldy, cols;
  bool add;
  std::int64_t panel_floats;  ///< From panel to panel.
};

/// m rows, packed as tiles of `tile_rows`, times panels [begin, end) of `blocks` blocks. A pair of panels stays in
/// cache while every tile passes over it.
TROUPE_INLINE void multiply_pairs(PairTile tile, std::int64_t m, std::int64_t tile_rows, const float* panels,
                                  std::int64_t blocks, std::int64_t begin, std::int64_t end, const PairTarget& target) {
  alignas(64) float sums[kChains * kPairRows * kPairVectors * 16];
  const float* packed = tile.a;
  tile.sums = sums;
  for (std::int64_t panel = begin; panel < end;) {
    const std::int64_t width = end - panel >= kPairVectors ? kPairVectors : 1;
    const float* b[kPairVectors];
    for (std::int64_t j = 0; j < width; ++j) b[j] = panels + (panel + j) * target.panel_floats;
    tile.a = packed;
    tile.b = b;
    for (std::int64_t row = 0; row < m; row += tile_rows) {
      const std::int64_t rows = m - row < tile_rows ? m - row : tile_rows;
      const PairTileFn run = width == kPairVectors ? pick_pair_rows<kPairVectors, 1>(rows) : pick_pair_rows<1, 1>(rows);
      tile.chain_floats = rows * width * 16;
      {
        const Flushing flushing;
        run(tile);
      }
      finish({sums, tile.chain_floats, tile.chains, rows, width, target.y + row * target.ldy + panel * 16, target.ldy,
              target.cols - panel * 16},
             target.add);
      tile.a += rows * blocks * kPairFloats;
    }
    panel += width;
  }
}

/// m rows as tiles of `tile_rows`.
TROUPE_INLINE void pack_tiles(const float* x, std::int64_t ldx, std::int64_t m, std::int64_t tile_rows, std::int64_t k,
                              float* packed) {
  for (std::int64_t row = 0; row < m; row += tile_rows) {
    const std::int64_t rows = m - row < tile_rows ? m - row : tile_rows;
    pack_pair_rows(x + row * ldx, ldx, rows, k, packed);
    packed += rows * (padded(k) / 32) * kPairFloats;
  }
}

void matmul_part_bf16(const MatmulPart& part) {
  std::int64_t chain[kChains + 1];
  chains_in_blocks(part, chain);
  const std::int64_t blocks = padded(part.k) / 32;
  for (std::int64_t begin = 0; begin < part.m; begin += part.block_rows) {
    const std::int64_t m = part.m - begin < part.block_rows ? part.m - begin : part.block_rows;
    const std::int64_t tiles = (m + kPairRows - 1) / kPairRows;
    const std::int64_t tile_rows = (m + tiles - 1) / tiles;
    pack_tiles(part.x + begin * part.ldx, part.ldx, m, tile_rows, part.k, part.scratch);
    multiply_pairs({part.scratch, nullptr, chain, kChains, nullptr, 0}, m, tile_rows, part.panels, blocks,
                   part.panel_begin, part.panel_end, {part.y + begin * part.ldy, part.ldy, part.n, false, blocks * 256});
  }
}

void rows_part_bf16(const RowsPart& part) {
  const std::int64_t blocks = padded(part.k) / 32;
  const std::int64_t chain[] = {0, blocks};
  const std::int64_t tiles = (part.m + kPairRows - 1) / kPairRows;
  const std::int64_t tile_rows = (part.m + tiles - 1) / tiles;
  pack_tiles(part.x, part.ldx, part.m, tile_rows, part.k, part.scratch);
  multiply_pairs({part.scratch, nullptr, chain, 1, nullptr, 0}, part.m, tile_rows, part.panels, blocks, 0,
                 (part.n + 15) / 16, {part.y, part.ldy, part.n, false, part.panel_floats});
}

void gradient_part_bf16(const GradientPart& part) {
  const std::int64_t blocks = padded(part.rows) / 32;
  const std::int64_t chain[] = {0, blocks};
  for (std::int64_t begin = part.begin; begin < part.end; begin += kPairRows) {
    const std::int64_t n = part.end - begin < kPairRows ? part.end - begin : kPairRows;
    pack_pair_columns(part.dy + begin, part.ldy, part.rows, n, part.scratch);
    multiply_pairs({part.scratch, nullptr, chain, 1, nullptr, 0}, n, n, part.panels, blocks, 0, (part.k + 15) / 16,
                   {part.dw + begin * part.k, part.k, part.k, part.add, blocks * 256});
  }
}

constexpr ProductTable bf16_products() {
  return {kPairRows, kBlockNumbers, pack_panel_bf16, pack_columns_bf16, matmul_part_bf16, gradient_part_bf16, rows_part_bf16};
}
