// Rows of x times panels of packed weights where K is long: a block of rows that stays in cache would be too few to read
// all weights for. K is cut in pieces, and the sums of a piece wait in memory for the next one. Included inside the
// namespace of one instruction set.

/// Rows [0, m) of x as tiles of `tile_rows`, each [k][rows of the tile].
TROUPE_INLINE void pack_rows(const float* x, std::int64_t ldx, std::int64_t m, std::int64_t k, std::int64_t tile_rows,
                             float* packed) {
  for (std::int64_t begin = 0; begin < m; begin += tile_rows) {
    const std::int64_t rows = m - begin < tile_rows ? m - begin : tile_rows;
    const float* block = x + begin * ldx;
    transpose_rows([block, ldx](int i) { return block + i * ldx; }, rows, k, packed, rows);
    packed += rows * k;
  }
}

/// What becomes of the sums of a piece. left, right, open: of the tile, in memory.
enum class Ending : std::uint8_t {
  kOpen,    ///< open = sums: the chain goes on
  kFirst,   ///< left = sums
  kSecond,  ///< left = left + sums
  kThird,   ///< right = sums
  kFourth,  ///< c = left + (right + sums)
};

/// A piece of a chain of K.
struct ChainPiece {
  std::int64_t begin, end;
  bool begins;  ///< The chain does.
  float start;  ///< What it begins with.
  Ending ending;
};

/// A tile over a piece. a and b are where the piece begins.
struct PieceTile {
  const float* a;
  const float* const* b;
  float* left;          ///< [rows][16 * vectors]; right and open follow,
  std::int64_t apart;   ///< so many floats from one to the next.
  float* c;
  std::int64_t ldc, cols;
  const float* ahead;  ///< A panel to ask for on the way, or null.
};

template <Ending kEnding, int kRows, int kVectors>
TROUPE_INLINE void end_piece(Vec (&sums)[kRows][kVectors], const PieceTile& t) {
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      float* const left = t.left + (i * kVectors + j) * 16;
      float* const right = left + t.apart;
      if constexpr (kEnding == Ending::kOpen) store(right + t.apart, sums[i][j]);
      if constexpr (kEnding == Ending::kFirst) store(left, sums[i][j]);
      if constexpr (kEnding == Ending::kSecond) store(left, add(load(left), sums[i][j]));
      if constexpr (kEnding == Ending::kThird) store(right, sums[i][j]);
      if constexpr (kEnding == Ending::kFourth) sums[i][j] = add(load(left), add(load(right), sums[i][j]));
    }
  }
  if constexpr (kEnding == Ending::kFourth) write_tile(sums, t.c, t.ldc, t.cols);
}

template <int kRows, int kVectors>
void piece_tile(const PieceTile& t, const ChainPiece& piece) {
  Vec sums[kRows][kVectors];
  if (piece.begins) {
    fill(sums, set(piece.start));
  } else {
    const float* open = t.left + 2 * t.apart;
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sums[i][j] = load(open + (i * kVectors + j) * 16);
    }
  }
  if (t.ahead != nullptr) {
    accumulate<true>(sums, t.a, t.b, 0, piece.end - piece.begin, t.ahead);
  } else {
    accumulate<false>(sums, t.a, t.b, 0, piece.end - piece.begin, nullptr);
  }
  switch (piece.ending) {
    case Ending::kOpen: return end_piece<Ending::kOpen>(sums, t);
    case Ending::kFirst: return end_piece<Ending::kFirst>(sums, t);
    case Ending::kSecond: return end_piece<Ending::kSecond>(sums, t);
    case Ending::kThird: return end_piece<Ending::kThird>(sums, t);
    case Ending::kFourth: return end_piece<Ending::kFourth>(sums, t);
  }
}

using PieceTileFn = void (*)(const PieceTile&, const ChainPiece&);
template <int kVectors, int kRows>
TROUPE_INLINE PieceTileFn pick_piece_rows(std::int64_t rows) {
  if (rows == kRows) return piece_tile<kRows, kVectors>;
  if constexpr (kRows < kTileRows) return pick_piece_rows<kVectors, kRows + 1>(rows);
  return nullptr;
}
TROUPE_INLINE PieceTileFn pick_piece(std::int64_t rows, std::int64_t vectors) {
  if constexpr (kTileVectors > 1) {
    if (vectors == kTileVectors) return pick_piece_rows<kTileVectors, 1>(rows);
  }
  return pick_piece_rows<1, 1>(rows);
}

/// m rows, packed over the piece as tiles of `tile_rows`, times panels [begin, end). `sums`: what waits, of all tiles.
TROUPE_INLINE void multiply_piece(const MatmulPart& part, const ChainPiece& piece, std::int64_t m,
                                  std::int64_t tile_rows, std::int64_t begin, std::int64_t end, float* y, float* sums) {
  const std::int64_t apart = m * (end - begin) * 16;
  const float* panels = part.panels + piece.begin * 16;
  for (std::int64_t panel = begin; panel < end;) {
    const std::int64_t width = end - panel >= kTileVectors ? kTileVectors : 1;
    const float* b[kTileVectors];
    for (std::int64_t j = 0; j < width; ++j) b[j] = panels + (panel + j) * part.k * 16;
    const float* a = part.scratch + m * piece.begin;
    std::int64_t ahead = panel + width;
    for (std::int64_t row = 0; row < m; row += tile_rows, ++ahead) {
      const std::int64_t rows = m - row < tile_rows ? m - row : tile_rows;
      const bool asks = ahead < panel + 2 * width && ahead < end;
      pick_piece(rows, width)({a, b, sums, apart, y + row * part.ldy + panel * 16, part.ldy, part.n - panel * 16,
                               asks ? panels + ahead * part.k * 16 : nullptr},
                              piece);
      a += rows * (piece.end - piece.begin);
      sums += rows * width * 16;
    }
    panel += width;
  }
}

/// Calls body(piece) for the pieces of K, in order.
template <class Body>
TROUPE_INLINE void for_pieces(const MatmulPart& part, const Body& body) {
  constexpr Ending kEndings[] = {Ending::kFirst, Ending::kSecond, Ending::kThird, Ending::kFourth};
  for (int q = 0; q < kChains; ++q) {
    const std::int64_t from = part.bounds[q];
    const std::int64_t length = part.bounds[q + 1] - from;
    const std::int64_t parts = length <= kPieceK ? 1 : (length + kPieceK - 1) / kPieceK;
    for (std::int64_t i = 0; i < parts; ++i) {
      body(ChainPiece{from + length * i / parts, from + length * (i + 1) / parts, i == 0, length == 0 ? -0.0f : 0.0f,
                      i + 1 == parts ? kEndings[q] : Ending::kOpen});
    }
  }
}

/// m <= kPieceRows rows from `begin` on, in pieces of K.
TROUPE_INLINE void multiply_long(const MatmulPart& part, std::int64_t begin, std::int64_t m) {
  const std::int64_t tiles = (m + kTileRows - 1) / kTileRows;
  const std::int64_t tile_rows = (m + tiles - 1) / tiles;
  const float* x = part.x + begin * part.ldx;
  for_pieces(part, [&](const ChainPiece& piece) {
    pack_rows(x + piece.begin, part.ldx, m, piece.end - piece.begin, tile_rows, part.scratch + m * piece.begin);
  });
  const std::int64_t panels = part.panel_end - part.panel_begin;
  const std::int64_t groups = (panels + kPiecePanels - 1) / kPiecePanels;
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t first = part.panel_begin + panels * group / groups;
    const std::int64_t last = part.panel_begin + panels * (group + 1) / groups;
    for_pieces(part, [&](const ChainPiece& piece) {
      multiply_piece(part, piece, m, tile_rows, first, last, part.y + begin * part.ldy, part.scratch + m * part.k);
    });
  }
}
