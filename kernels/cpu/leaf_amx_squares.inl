// Products of bfloat16 by AMX where 32 rows meet 32 columns: four tiles of sums in registers. Included inside the
// namespace of one instruction set, behind leaf_amx.inl's instructions.
//
// The multiplier is busy 16 cycles for an instruction that reads 2 KB, so what is read twice must come from the first-
// level cache: K is cut in pieces whose panels stay there while all rows pass by, themselves past that cache. And it
// must not wait: the sums of a chain are stored among the first products of the next one, and what becomes of them is
// computed among those that follow.

inline constexpr std::int64_t kPieceBlocks = 16;  ///< Of two panels, 32 KB.
inline constexpr std::int64_t kSquareFloats = 1024;

/// What becomes of the sums of a piece of K. S0 to S3: of its chains; left, right: of this square, in memory.
enum class Ending : std::uint8_t {
  kNothing,
  kTree,        ///< y = (S0 + S1) + (S2 + S3)
  kPair,        ///< y = S0 + S1
  kFirstPair,   ///< left = S0 + S1
  kSecondPair,  ///< y = left + (S0 + S1)
  kFirst,       ///< left = S0
  kSecond,      ///< left = left + S0
  kLastOfTwo,   ///< y = left + S0
  kThird,       ///< right = S0
  kFourth,      ///< y = left + (right + S0)
  kStore,       ///< y = S0
  kAdd,         ///< y = y + S0
};

/// A square of y and its sums between pieces.
struct Square {
  float* y;
  std::int64_t ldy;
  float* left;  ///< [32][32]; right and the sums of an unfinished chain follow. Not needed for a single piece.
};

/// One piece of K: `count` whole chains, or a part of one.
struct Piece {
  std::int64_t bounds[kChains + 1];  ///< Of its chains, in blocks.
  std::int64_t count;
  bool begins, ends;  ///< Its (first, last) chain does.
  Ending ending;
};

/// Rows [begin, end) of the ending of square `s`; S0 at `first`, the others at `sums`, a square apart.
template <Ending kWhat>
TROUPE_INLINE void end_rows_as(const Square& s, const float* first, const float* sums, std::int64_t begin,
                               std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t j = 0; j < 32; j += 16) {
      const std::int64_t at = i * 32 + j;
      float* const y = s.y + i * s.ldy + j;
      float* const left = s.left + at;
      float* const right = left + kSquareFloats;
      const Vec sum = load(first + at);
      const auto second = [&] { return add(sum, load(sums + at)); };
      if constexpr (kWhat == Ending::kTree)
        store(y, add(second(), add(load(sums + kSquareFloats + at), load(sums + 2 * kSquareFloats + at))));
      if constexpr (kWhat == Ending::kPair) store(y, second());
      if constexpr (kWhat == Ending::kFirstPair) store(left, second());
      if constexpr (kWhat == Ending::kSecondPair) store(y, add(load(left), second()));
      if constexpr (kWhat == Ending::kFirst) store(left, sum);
      if constexpr (kWhat == Ending::kSecond) store(left, add(load(left), sum));
      if constexpr (kWhat == Ending::kLastOfTwo) store(y, add(load(left), sum));
      if constexpr (kWhat == Ending::kThird) store(right, sum);
      if constexpr (kWhat == Ending::kFourth) store(y, add(load(left), add(load(right), sum)));
      if constexpr (kWhat == Ending::kStore) store(y, sum);
      if constexpr (kWhat == Ending::kAdd) store(y, add(load(y), sum));
    }
  }
}

__attribute__((noinline)) void end_rows(Ending what, const Square& s, const float* first, const float* sums,
                                        std::int64_t begin, std::int64_t end) {
  switch (what) {
    case Ending::kNothing: return;
    case Ending::kTree: return end_rows_as<Ending::kTree>(s, first, sums, begin, end);
    case Ending::kPair: return end_rows_as<Ending::kPair>(s, first, sums, begin, end);
    case Ending::kFirstPair: return end_rows_as<Ending::kFirstPair>(s, first, sums, begin, end);
    case Ending::kSecondPair: return end_rows_as<Ending::kSecondPair>(s, first, sums, begin, end);
    case Ending::kFirst: return end_rows_as<Ending::kFirst>(s, first, sums, begin, end);
    case Ending::kSecond: return end_rows_as<Ending::kSecond>(s, first, sums, begin, end);
    case Ending::kLastOfTwo: return end_rows_as<Ending::kLastOfTwo>(s, first, sums, begin, end);
    case Ending::kThird: return end_rows_as<Ending::kThird>(s, first, sums, begin, end);
    case Ending::kFourth: return end_rows_as<Ending::kFourth>(s, first, sums, begin, end);
    case Ending::kStore: return end_rows_as<Ending::kStore>(s, first, sums, begin, end);
    case Ending::kAdd: return end_rows_as<Ending::kAdd>(s, first, sums, begin, end);
  }
}

/// Squares one after the other. Configured for tiles of 16 rows.
class SquareLine {
 public:
  /// What a step reads: two tiles of rows and two panels, at block 0 of K.
  struct Operands {
    const float *a, *a2, *b, *b2;
    const float* ahead;  ///< A panel to ask for on the way, or null.
  };

  /// Adds the piece's products to the square. kRowsStay: rows are read again sooner than panels.
  template <bool kRowsStay>
  void run(const Operands& o, const Piece& piece, const Square& square) {
    float* const first = first_[turn_ ^= 1];
    const std::int64_t chains = piece.count < 2 ? piece.count : 2;  // then sums are overwritten that the ending needs
    const std::int64_t steps = piece.bounds[chains] - piece.bounds[0] - 1;
    const std::int64_t rows_a_step = steps > 0 ? (32 + steps - 1) / steps : 32;
    std::int64_t row = 0;
    for (std::int64_t q = 0; q < piece.count; ++q) {
      if (q == chains) end_to(row, 32);
      step<kRowsStay, true>(o, piece.bounds[q], q == 0 && !piece.begins ? square.left + 2 * kSquareFloats : nullptr);
      for (std::int64_t block = piece.bounds[q] + 1; block < piece.bounds[q + 1]; ++block) {
        step<kRowsStay, false>(o, block, nullptr);
        if (row == 32) continue;
        ask_to_write(square, row, row + rows_a_step);
        end_to(row, row + rows_a_step);
      }
      pending_ = q == 0 ? first : sums_ + (q - 1) * kSquareFloats;
    }
    end_to(row, 32);
    if (!piece.ends) pending_ = square.left + 2 * kSquareFloats;
    before_ = square;
    ending_ = piece.ends ? piece.ending : Ending::kNothing;
    before_first_ = first;
  }

  /// The last square's ending.
  void finish() {
    if (pending_ == nullptr) return;
    store_tile<0>(pending_, 32);
    store_tile<1>(pending_ + 16, 32);
    store_tile<2>(pending_ + 512, 32);
    store_tile<3>(pending_ + 528, 32);
    pending_ = nullptr;
    std::int64_t row = 0;
    end_to(row, 32);
  }

 private:
  /// Rows [row, end) of the ending of the square before; `row` becomes `end`.
  __attribute__((always_inline)) void end_to(std::int64_t& row, std::int64_t end) {
    end = end < 32 ? end : 32;
    if (row < end) end_rows(ending_, before_, before_first_, sums_, row, end);
    row = end;
  }

  /// y is written a square later: by then, its rows should be at hand.
  static void ask_to_write(const Square& s, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end && i < 32; ++i) {
      for (std::int64_t j = 0; j < 32; j += 16) asm volatile("prefetchw %0" ::"m"(s.y[i * s.ldy + j]));
    }
  }

  /// Stores a finished tile of sums and begins the next: with 0, or with what is at `from`.
  template <int kC>
  __attribute__((always_inline)) void turn_tile(const float* from) {
    constexpr std::int64_t kAt = kC / 2 * 512 + kC % 2 * 16;
    if (pending_ != nullptr) store_tile<kC>(pending_ + kAt, 32);
    if (from == nullptr) return zero_tile<kC>();
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from + kAt), "r"(std::int64_t{128}), "i"(kC) : "memory");
  }

  template <bool kRowsStay, bool kFirst>
  __attribute__((always_inline)) void step(const Operands& o, std::int64_t block, const float* from) {
    const std::int64_t at = block * 256;
    load_tile_of<4, !kRowsStay>(o.a + at);
    load_tile_of<6, kRowsStay>(o.b + at);
    if constexpr (kFirst) turn_tile<0>(from);
    multiply_tile<0, 4, 6>();
    load_tile_of<7, kRowsStay>(o.b2 + at);
    if constexpr (kFirst) turn_tile<1>(from);
    multiply_tile<1, 4, 7>();
    load_tile_of<5, !kRowsStay>(o.a2 + at);
    if constexpr (kFirst) turn_tile<2>(from);
    multiply_tile<2, 5, 6>();
    if constexpr (kFirst) turn_tile<3>(from);
    multiply_tile<3, 5, 7>();
    if (o.ahead != nullptr) {
      for (int i = 0; i < 16; ++i) prefetch(o.ahead + at + 16 * i);
    }
  }

  alignas(64) float first_[2][kSquareFloats];              // S0: one is read while the next one is stored
  alignas(64) float sums_[(kChains - 1) * kSquareFloats];  // S1 to S3
  int turn_ = 0;
  float* pending_ = nullptr;  // where the sums in the registers go
  Ending ending_ = Ending::kNothing;
  Square before_{};
  const float* before_first_ = nullptr;
};

/// Cuts 1, 2 or 4 chains, of which none is empty, in pieces.
class Pieces {
 public:
  Pieces(const std::int64_t* chain, std::int64_t chains, bool add_to_y)
      : chain_(chain), chains_(chains), add_to_y_(add_to_y) {
    if (chain[chains] <= kPieceBlocks) {
      each_ = chains;
    } else if (chains == 4 && chain[2] <= kPieceBlocks && chain[4] - chain[2] <= kPieceBlocks) {
      each_ = 2;
    }
  }

  /// The next piece, or false behind the last one.
  bool next(Piece& piece) {
    if (q_ == chains_) return false;
    const std::int64_t length = chain_[q_ + each_] - chain_[q_];
    const std::int64_t parts = each_ > 1 ? 1 : (length + kPieceBlocks - 1) / kPieceBlocks;
    piece.count = each_;
    for (std::int64_t i = 0; i <= each_; ++i) piece.bounds[i] = chain_[q_ + i];
    if (parts > 1) {
      piece.bounds[0] = chain_[q_] + length * part_ / parts;
      piece.bounds[1] = chain_[q_] + length * (part_ + 1) / parts;
    }
    piece.begins = part_ == 0;
    piece.ends = ++part_ == parts;
    piece.ending = ending();
    if (piece.ends) part_ = 0, q_ += each_;
    return true;
  }

 private:
  [[nodiscard]] Ending ending() const {
    if (chains_ == 1) return add_to_y_ ? Ending::kAdd : Ending::kStore;
    if (each_ == 4) return Ending::kTree;
    if (chains_ == 2) return each_ == 2 ? Ending::kPair : (q_ == 0 ? Ending::kFirst : Ending::kLastOfTwo);
    if (each_ == 2) return q_ == 0 ? Ending::kFirstPair : Ending::kSecondPair;
    constexpr Ending kByChain[] = {Ending::kFirst, Ending::kSecond, Ending::kThird, Ending::kFourth};
    return kByChain[q_];
  }

  const std::int64_t* chain_;
  std::int64_t chains_, each_ = 1, q_ = 0, part_ = 0;
  bool add_to_y_;
};

/// Floats of memory that `m` rows need between pieces: left, right and an unfinished chain of every square.
TROUPE_INLINE std::int64_t between_floats(std::int64_t m) { return m / 32 * 3 * kSquareFloats; }

/// m rows (a multiple of 32), packed as tiles of 16, times panels [begin, end) (an even number, all of whose columns
/// are in y). `chain`: bounds of 1, 2 or 4 chains, none empty. `between`: between_floats(m), needed for several pieces.
template <bool kRowsStay>
void multiply_squares(const float* packed, std::int64_t m, const float* panels, std::int64_t panel_floats,
                      std::int64_t begin, std::int64_t end, const std::int64_t* chain, std::int64_t chains,
                      const AmxTarget& target, float* between) {
  SquareLine line;
  const std::int64_t tile_floats = chain[chains] * 256;
  for (std::int64_t panel = begin; panel < end; panel += 2) {
    const float* b = panels + panel * panel_floats;
    Pieces pieces(chain, chains, target.add);
    for (Piece piece; pieces.next(piece);) {
      for (std::int64_t row = 0; row < m; row += 32) {
        const float* a = packed + row / 16 * tile_floats;
        const bool asks = m > 32 && row < 64 && panel + 2 < end;  // the same piece of the next panels
        line.run<kRowsStay>({a, a + tile_floats, b, b + panel_floats, asks ? b + (2 + row / 32) * panel_floats : nullptr},
                            piece, {target.y + row * target.ldy + panel * 16, target.ldy, between + row / 32 * 3 * kSquareFloats});
      }
    }
  }
  line.finish();
}
