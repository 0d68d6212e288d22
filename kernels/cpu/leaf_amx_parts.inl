// Parts of products of bfloat16 by AMX. Included inside the namespace of one instruction set.

/// Weights of so many bytes stay in the second-level cache. Where y is wide, they pass by 32 rows at a time, and rows
/// of y are written from end to end.
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

/// How K is cut: 1 or 4 chains, and those of them that have blocks.
struct AmxChains {
  const std::int64_t* bounds;
  std::int64_t count;
  std::int64_t filled[kChains + 1];
  std::int64_t filled_count = 0;

  /// Empty chains are -0 and add nothing.
  AmxChains(const std::int64_t* chain, std::int64_t chains) : bounds(chain), count(chains), filled{} {
    for (std::int64_t q = 0; q < chains; ++q) {
      if (chain[q] < chain[q + 1]) filled[++filled_count] = chain[q + 1];
    }
  }
};

/// m rows, packed as tiles of 16, times panels [begin, end); configured for 16. `between`: see multiply_squares.
TROUPE_INLINE void multiply_amx(const float* packed, std::int64_t m, const float* panels, std::int64_t begin,
                                std::int64_t end, const AmxChains& chains, const AmxTarget& target, float* between) {
  const std::int64_t blocks = chains.bounds[chains.count];
  const std::int64_t whole = m / 32 * 32;
  const std::int64_t valid = target.cols < end * 16 ? target.cols : end * 16;
  const std::int64_t square_end = begin + (valid - begin * 16) / 32 * 2;
  const PairTile rows{packed, nullptr, chains.bounds, chains.count, nullptr, 0};
  // Rows that are left over pass by the same panels before those are forgotten.
  const std::int64_t fit = kSmallWeights / 2 / (blocks * 1024) / 2 * 2;
  const std::int64_t group = whole == m ? end - begin : (fit < 2 ? 2 : fit);
  for (std::int64_t panel = begin; panel < end; panel += group) {
    const std::int64_t stop = panel + group < end ? panel + group : end;
    const std::int64_t squares = square_end < panel ? panel : (square_end < stop ? square_end : stop);
    if (whole == 32) {
      multiply_squares<true>(packed, whole, panels, target.panel_floats, panel, squares, chains.filled,
                             chains.filled_count, target, between);
    } else if (whole > 0) {
      multiply_squares<false>(packed, whole, panels, target.panel_floats, panel, squares, chains.filled,
                              chains.filled_count, target, between);
    }
    if (whole > 0 && squares < stop) multiply_edges(rows, whole, 16, panels, blocks, squares, stop, target);
    if (whole < m) {
      PairTile rest = rows;
      rest.a = packed + whole * blocks * 16;
      multiply_edges(rest, m - whole, 16, panels, blocks, panel, stop,
                     {target.y + whole * target.ldy, target.ldy, target.cols, target.add, target.panel_floats});
    }
  }
}

/// Fewer than 32 rows, or three chains.
TROUPE_INLINE void few_rows(const MatmulPart& part, const std::int64_t* chain, std::int64_t begin, std::int64_t m) {
  const std::int64_t blocks = padded(part.k) / 32;
  const std::int64_t tiles = (m + 15) / 16;
  const std::int64_t rows = (m + tiles - 1) / tiles;  // evened out: 17 are 9 + 8
  configure(rows);
  pack_amx_rows(part.x + begin * part.ldx, part.ldx, m, rows, part.k, part.scratch);
  multiply_edges({part.scratch, nullptr, chain, kChains, nullptr, 0}, m, rows, part.panels, blocks, part.panel_begin,
                 part.panel_end, {part.y + begin * part.ldy, part.ldy, part.n, false, blocks * 256});
}

void matmul_part_amx(const MatmulPart& part) {
  std::int64_t chain[kChains + 1];
  chains_in_blocks(part, chain);
  const std::int64_t blocks = padded(part.k) / 32;
  const AmxChains chains(chain, kChains);
  const bool small = part.n >= 2 * part.k && (part.panel_end - part.panel_begin) * blocks * 1024 <= kSmallWeights;
  const std::int64_t most = small ? 32 : part.block_rows;
  const std::int64_t turns = (part.m + most - 1) / most;
  const std::int64_t step = ((part.m + turns - 1) / turns + 31) / 32 * 32;  // 200 rows are 104 + 96, not 192 + 8
  for (std::int64_t begin = 0; begin < part.m; begin += step) {
    const std::int64_t m = part.m - begin < step ? part.m - begin : step;
    if (m < 32 || chains.filled_count == 3) {
      few_rows(part, chain, begin, m);
      continue;
    }
    configure(16);
    pack_amx_rows(part.x + begin * part.ldx, part.ldx, m, 16, part.k, part.scratch);
    float* between = part.scratch + (m + 15) / 16 * blocks * 256;
    multiply_amx(part.scratch, m, part.panels, part.panel_begin, part.panel_end, chains,
                 {part.y + begin * part.ldy, part.ldy, part.n, false, blocks * 256}, between);
  }
  release();
}

void rows_part_amx(const RowsPart& part) {
  const std::int64_t blocks = padded(part.k) / 32;
  const std::int64_t chain[] = {0, blocks};
  const std::int64_t tiles = (part.m + 15) / 16;
  const AmxTarget target{part.y, part.ldy, part.n, false, part.panel_floats};
  const std::int64_t rows = part.m < 32 ? (part.m + tiles - 1) / tiles : 16;
  configure(rows);
  pack_amx_rows(part.x, part.ldx, part.m, rows, part.k, part.scratch);
  if (part.m < 32) {
    multiply_edges({part.scratch, nullptr, chain, 1, nullptr, 0}, part.m, rows, part.panels, blocks, 0,
                   (part.n + 15) / 16, target);
  } else {
    multiply_amx(part.scratch, part.m, part.panels, 0, (part.n + 15) / 16, {chain, 1}, target,
                 part.scratch + tiles * blocks * 256);
  }
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
    multiply_amx(part.scratch, n, part.panels, 0, (part.k + 15) / 16, {chain, 1},
                 {part.dw + begin * part.k, part.k, part.k, part.add, blocks * 256}, nullptr);
  }
  release();
}

constexpr ProductTable products() {
  return {32, 256 << 10, pack_panel_bf16, pack_columns_bf16, matmul_part_amx, gradient_part_amx, rows_part_amx};
}
