// Rows of x times panels of packed weights, and columns of dy times panels of x. Included inside the namespace of one
// instruction set.

/// All of the part's panels for a block of packed rows. Panels are the outer loop: a pair of them stays in cache while
/// every tile of the block passes over it. The first tiles ask for the next pair, so that memory works while they do.
TROUPE_INLINE void multiply_block(const MatmulPart& part, const float* packed, std::int64_t m, std::int64_t tile_rows,
                                  float* y) {
  for (std::int64_t panel = part.panel_begin; panel < part.panel_end;) {
    const std::int64_t width = tile_width(tile_rows, part.panel_end - panel);
    const float* b[kWideTileVectors];
    for (std::int64_t j = 0; j < width; ++j) b[j] = part.panels + (panel + j) * part.k * 16;
    const std::int64_t cols = part.n - panel * 16;
    const float* a = packed;
    std::int64_t ahead = panel + width;
    for (std::int64_t begin = 0; begin < m; begin += tile_rows, ++ahead) {
      const std::int64_t rows = m - begin < tile_rows ? m - begin : tile_rows;
      const bool asks = ahead < panel + 2 * width && ahead < part.panel_end;
      const float* asked = asks ? part.panels + ahead * part.k * 16 : nullptr;
      pick_tile<Order::kQuarters>(rows,
                                  width)({a, b, part.bounds, y + begin * part.ldy + panel * 16, part.ldy, cols, asked});
      a += rows * part.k;
    }
    panel += width;
  }
}

void matmul_part(const MatmulPart& part) {
  if (part.m == 1) {
    multiply_block(part, part.x, 1, 1, part.y);  // one row is its own packed form
    return;
  }
  if (part.k > kLongK && part.m > part.block_rows) {
    const std::int64_t turns = (part.m + kPieceRows - 1) / kPieceRows;
    for (std::int64_t i = 0; i < turns; ++i)
      multiply_long(part, part.m * i / turns, part.m * (i + 1) / turns - part.m * i / turns);
    return;
  }
  for (std::int64_t begin = 0; begin < part.m; begin += part.block_rows) {
    const std::int64_t m = part.m - begin < part.block_rows ? part.m - begin : part.block_rows;
    const std::int64_t tiles = (m + kTileRows - 1) / kTileRows;
    const std::int64_t tile_rows = (m + tiles - 1) / tiles;  // evened out: 13 rows are 7 + 6, not 12 + 1
    pack_rows(part.x + begin * part.ldx, part.ldx, m, part.k, tile_rows, part.scratch);
    multiply_block(part, part.scratch, m, tile_rows, part.y + begin * part.ldy);
  }
}

/// Columns [begin, end) of dy as tiles of kTileRows, each [rows][columns of the tile]. Row by row, because rows of dy
/// lie pages apart.
TROUPE_INLINE void pack_gradient_tiles(const GradientPart& part, std::int64_t begin, std::int64_t end, float* packed) {
  for (std::int64_t t = 0; t < part.rows; ++t) {
    const float* row = part.dy + t * part.ldy;
    for (std::int64_t i = begin; i < end; i += kTileRows) {
      const std::int64_t n = end - i < kTileRows ? end - i : kTileRows;
      const Mask m = first(n);
      store(packed + (i - begin) * part.rows + t * n, load(row + i, m), m);
    }
  }
}

void gradient_part(const GradientPart& part) {
  const std::int64_t bounds[] = {0, part.rows};
  const std::int64_t panels = (part.k + 15) / 16;
  for (std::int64_t group = part.begin; group < part.end; group += kGradientColumns) {
    const std::int64_t end = part.end - group < kGradientColumns ? part.end : group + kGradientColumns;
    pack_gradient_tiles(part, group, end, part.scratch);
    for (std::int64_t panel = 0; panel < panels;) {  // a pair of panels stays in the first-level cache
      const std::int64_t width = tile_width(kTileRows, panels - panel);
      const float* b[kWideTileVectors];
      for (std::int64_t j = 0; j < width; ++j) b[j] = part.panels + (panel + j) * part.rows * 16;
      for (std::int64_t i = group; i < end; i += kTileRows) {
        const std::int64_t rows = end - i < kTileRows ? end - i : kTileRows;
        const TileFn tile = part.add ? pick_tile<Order::kAdded>(rows, width) : pick_tile<Order::kChain>(rows, width);
        tile({part.scratch + (i - group) * part.rows, b, bounds, part.dw + i * part.k + panel * 16, part.k,
              part.k - panel * 16, nullptr});
      }
      panel += width;
    }
  }
}
