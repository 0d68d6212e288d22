// The gated delta rule in chunks of rows. Included inside the namespace of one instruction set.
//
// Of one chunk and value head, with g the running sum of the decays, G_ij = exp(g_i - g_j) for j <= i and S the state
// before it: P = (Q K^T) * G; D = (K K^T) * G below the diagonal; (I + beta D) U = beta (V - e^g K S);
// out = e^g Q S + P U; S' = e^{g_last} S + (e^{g_last - g} K)^T U. (Yang et al., 2024, arXiv:2412.06464, section 3.3.)
// Rows are filled up with zeros to a multiple of 16, so are channels; every matrix has rows an odd number of vectors
// apart, which keeps its columns in different sets of the cache.

/// Floats from row to row of a matrix of n columns.
TROUPE_INLINE std::int64_t delta_ld(std::int64_t n) { return ((n + 15) / 16 | 1) * 16; }
TROUPE_INLINE std::int64_t up_to_vector(std::int64_t n) { return (n + 15) / 16 * 16; }

/// A chunk's matrices, in the task's scratch.
struct DeltaChunk {
  std::int64_t rows, padded;   ///< Rows of the chunk; up to a vector.
  std::int64_t kp, vp;         ///< Channels, up to a vector.
  std::int64_t ldk, ldv, ldc;  ///< Of [.][key], [.][value] and [.][chunk].
  // Of the key head.
  float *q, *k, *kt;             ///< [C][key], [C][key] normalised, [key][C]
  float *kk, *qk;                ///< K K^T and Q K^T as far as the diagonal's blocks: [C][C]
  float *q_inverse, *k_inverse;  ///< 1 / |row|: [C]
  // Of a value head.
  float *kd;                    ///< e^{g_last - g} K
  float *v, *u;                 ///< [C][value]
  float *gates, *p, *d, *n;     ///< G, P, D and -beta D: [C][C]
  float *sums, *rest;           ///< g, and what float32 leaves of it: [C]
  float *growth, *tail, *beta;  ///< e^g, e^{g_last - g}, beta: [C]
  float last;                   ///< e^{g_last}

  [[nodiscard]] std::int64_t state_floats() const { return kp * ldv; }
};

/// Lays out a chunk's matrices from `at` on; returns what is behind them.
TROUPE_INLINE float* place_chunk(DeltaChunk& c, const DeltaRule& a, float* at) {
  c.kp = up_to_vector(a.key_dim);
  c.vp = up_to_vector(a.value_dim);
  c.ldk = delta_ld(c.kp);
  c.ldv = delta_ld(c.vp);
  c.ldc = delta_ld(kDeltaChunk);
  const auto take = [&at](std::int64_t floats) {
    float* const here = at;
    at += floats;
    return here;
  };
  c.q = take(kDeltaChunk * c.ldk);
  c.k = take(kDeltaChunk * c.ldk);
  c.kd = take(kDeltaChunk * c.ldk);
  c.kt = take(c.kp * c.ldc);
  c.v = take(kDeltaChunk * c.ldv);
  c.u = take(kDeltaChunk * c.ldv);
  for (float** square : {&c.kk, &c.qk, &c.gates, &c.p, &c.d, &c.n}) *square = take(kDeltaChunk * c.ldc);
  for (float** column : {&c.sums, &c.rest, &c.growth, &c.tail, &c.beta, &c.q_inverse, &c.k_inverse}) *column = take(kDeltaChunk);
  return at;
}

/// c[i][j] (+)= sum over t in [begin, end) of a[i * a_row + t * a_step] b[t][j], i < rows, j < cols. A block of
/// columns of b stays in the first-level cache while all rows pass.
TROUPE_INLINE void delta_product(std::int64_t rows, const float* a, std::int64_t a_row, std::int64_t a_step,
                                 const float* b, std::int64_t ldb, std::int64_t begin, std::int64_t end,
                                 std::int64_t cols, float* c, std::int64_t ldc, bool add) {
  constexpr std::int64_t kWidth = 16 * kWideTileVectors;
  for (std::int64_t column = 0; column < cols; column += kWidth) {
    const std::int64_t width = cols - column < kWidth ? cols - column : kWidth;
    const RowRun run{b + column, ldb, end};
    for (std::int64_t i = 0; i < rows; i += 6)
      combine(rows - i < 6 ? rows - i : 6, a + i * a_row, a_row, a_step, &run, begin, end, width, c + i * ldc + column,
              ldc, add);
  }
}

/// to[j][i] = from[i][j]; both sizes are multiples of 16.
TROUPE_INLINE void turn(const float* from, std::int64_t ld, std::int64_t rows, std::int64_t cols, float* to,
                        std::int64_t ldt) {
  for (std::int64_t i = 0; i < rows; i += 16) {
    for (std::int64_t j = 0; j < cols; j += 16) {
      Vec v[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) v[r] = load(from + (i + r) * ld + j);
      transpose(v);
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) store(to + (j + r) * ldt + i, v[r]);
    }
  }
}

TROUPE_INLINE void clear(float* x, std::int64_t floats) {
  for (std::int64_t i = 0; i < floats; i += 16) store(x + i, zero());
}

/// Rows of n floats, `stride` apart, as a padded matrix.
TROUPE_INLINE void pad_rows(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t n, float* to,
                            std::int64_t ld, std::int64_t padded) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < n; i += 16) store(to + row * ld + i, load(x + row * stride + i, first(n - i)));
  clear(to + rows * ld, (padded - rows) * ld);
}

/// to[i..i+16) = values(i) for a row of the caller's, past the caches where its lines are whole: a write would first
/// read them.
template <class Values>
TROUPE_INLINE void write_row(float* to, std::int64_t n, const Values& values) {
  if (n % 16 == 0 && reinterpret_cast<std::uintptr_t>(to) % 64 == 0) {
    for (std::int64_t i = 0; i < n; i += 16) stream(to + i, values(i));
  } else {
    for (std::int64_t i = 0; i < n; i += 16) store(to + i, values(i), first(n - i));
  }
}

/// y = x / sqrt(sum x^2 + 1e-6) * factor, the sum in 16 lanes; inverse = 1 / sqrt(...).
TROUPE_INLINE void unit_vectors(const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t n, float factor,
                                float* y, std::int64_t ldy, float* inverse) {
  for (std::int64_t row = 0; row < rows; ++row, x += ldx, y += ldy) {
    Vec sum = zero();
    for (std::int64_t i = 0; i < n; i += 16) {
      const Vec v = load(x + i, first(n - i));
      sum = fma(v, v, sum);
    }
    inverse[row] = 1 / __builtin_sqrtf(sum_lanes(sum) + 1e-6f);
    const Vec scale = set(inverse[row] * factor);
    for (std::int64_t i = 0; i < n; i += 16) store(y + i, mul(load(x + i, first(n - i)), scale));
  }
}

/// to[row] = factor[row] x[row]
TROUPE_INLINE void scale_rows(const float* x, const float* factor, std::int64_t rows, std::int64_t cols,
                              std::int64_t ld, float* to) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const Vec f = set(factor[row]);
    for (std::int64_t i = 0; i < cols; i += 16) store(to + row * ld + i, mul(load(x + row * ld + i), f));
  }
}

/// e^{g_i - g_j} for 16 columns from j on. Sums may be large beside what one row adds, so their rests count.
TROUPE_INLINE Vec gates_from(const DeltaChunk& c, std::int64_t i, std::int64_t j) {
  return exp(add(sub(set(c.sums[i]), load(c.sums + j)), sub(set(c.rest[i]), load(c.rest + j))));
}

/// What the value heads of a key head share, of the rows from `begin` on. The queries only where `with_queries`.
TROUPE_INLINE void read_keys(DeltaChunk& c, const DeltaRule& a, std::int64_t key_head, std::int64_t begin,
                             bool with_queries) {
  const std::int64_t keys = a.key_heads * a.key_dim, row_floats = 2 * keys + a.value_heads * a.value_dim;
  const float* x = a.qkv + begin * row_floats + key_head * a.key_dim;
  c.rows = a.rows - begin < kDeltaChunk ? a.rows - begin : kDeltaChunk;
  c.padded = up_to_vector(c.rows);
  unit_vectors(x + keys, row_floats, c.rows, a.key_dim, 1, c.k, c.ldk, c.k_inverse);
  clear(c.k + c.rows * c.ldk, (c.padded - c.rows) * c.ldk);
  turn(c.k, c.ldk, c.padded, c.kp, c.kt, c.ldc);
  if (with_queries) {
    const auto scale = static_cast<float>(1 / __builtin_sqrt(static_cast<double>(a.key_dim)));
    unit_vectors(x, row_floats, c.rows, a.key_dim, scale, c.q, c.ldk, c.q_inverse);
    clear(c.q + c.rows * c.ldk, (c.padded - c.rows) * c.ldk);
  }
  for (std::int64_t i = 0; i < c.padded; i += 16) {
    delta_product(16, c.k + i * c.ldk, c.ldk, 1, c.kt, c.ldc, 0, c.kp, i + 16, c.kk + i * c.ldc, c.ldc, false);
    if (with_queries)
      delta_product(16, c.q + i * c.ldk, c.ldk, 1, c.kt, c.ldc, 0, c.kp, i + 16, c.qk + i * c.ldc, c.ldc, false);
  }
}

/// G, P, D and -beta D, 0 above the diagonal (D and -beta D on it too). P only where `with_queries`.
TROUPE_INLINE void gate_pairs(DeltaChunk& c, bool with_queries) {
  for (std::int64_t i = 0; i < c.padded; ++i) {
    const Vec minus = set(-c.beta[i]);
    for (std::int64_t j = 0; j < c.padded; j += 16) {
      const std::int64_t at = i * c.ldc + j;
      if (j > i) {
        for (float* square : {c.gates, c.p, c.d, c.n}) store(square + at, zero());
        continue;
      }
      const Vec gate = keep(first(i + 1 - j), gates_from(c, i, j));
      const Vec d = keep(first(i - j), mul(gate, load(c.kk + at)));
      store(c.gates + at, gate);
      store(c.d + at, d);
      store(c.n + at, mul(minus, d));
      if (with_queries) store(c.p + at, mul(gate, load(c.qk + at)));
    }
  }
}

/// What one value head adds to it and does not depend on the state.
TROUPE_INLINE void read_values(DeltaChunk& c, const DeltaRule& a, std::int64_t head, std::int64_t begin,
                               bool with_queries) {
  const std::int64_t keys = a.key_heads * a.key_dim, row_floats = 2 * keys + a.value_heads * a.value_dim;
  pad_rows(a.qkv + begin * row_floats + 2 * keys + head * a.value_dim, row_floats, c.rows, a.value_dim, c.v, c.ldv,
           c.padded);
  double sum = 0;
  for (std::int64_t i = 0; i < c.padded; ++i) {
    const bool own = i < c.rows;
    if (own) sum += static_cast<double>(a.decay[(begin + i) * a.value_heads + head]);
    c.beta[i] = own ? a.beta[(begin + i) * a.value_heads + head] : 0;
    c.sums[i] = static_cast<float>(sum);
    c.rest[i] = static_cast<float>(sum - static_cast<double>(c.sums[i]));
  }
  for (std::int64_t i = 0; i < c.padded; i += 16) {
    store(c.growth + i, exp(load(c.sums + i)));
    store(c.tail + i, gates_from(c, c.padded - 1, i));
  }
  c.last = c.growth[c.padded - 1];
  scale_rows(c.k, c.tail, c.padded, c.kp, c.ldk, c.kd);
  gate_pairs(c, with_queries);
}

/// Rows [row, row + 4) of x += n x, kTurned: of x += n^T x, for the rows that are solved; then among themselves.
/// n: [.][ldc], 0 where it has no part. One chain a row: the solved rows ascending, then those of its block.
template <int kVectors, bool kTurned>
TROUPE_INLINE void solve_tile(const float* n, std::int64_t ldn, std::int64_t row, std::int64_t rows, float* x,
                              std::int64_t ldx) {
  Vec sums[4][kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sums[i][j] = load(x + (row + i) * ldx + 16 * j);
  }
  for (std::int64_t t = kTurned ? row + 4 : 0; t < (kTurned ? rows : row); ++t) {
    Vec known[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) known[j] = in_register(load(x + t * ldx + 16 * j));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Vec f = set(kTurned ? n[t * ldn + row + i] : n[(row + i) * ldn + t]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sums[i][j] = fma(f, known[j], sums[i][j]);
    }
  }
#pragma GCC unroll 4
  for (int step = 1; step < 4; ++step) {
    const int i = kTurned ? 3 - step : step;
#pragma GCC unroll 4
    for (int done = 0; done < step; ++done) {
      const int other = kTurned ? i + 1 + done : done;
      const Vec f = set(kTurned ? n[(row + other) * ldn + row + i] : n[(row + i) * ldn + row + other]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sums[i][j] = fma(f, sums[other][j], sums[i][j]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) store(x + (row + i) * ldx + 16 * j, sums[i][j]);
  }
}

/// x = (I - n)^-1 x, kTurned: (I - n^T)^-1 x, by substitution.
template <bool kTurned>
TROUPE_INLINE void solve(const float* n, std::int64_t ldn, std::int64_t rows, std::int64_t cols, float* x,
                         std::int64_t ldx) {
  for (std::int64_t column = 0; column < cols;) {
    const bool wide = cols - column >= 16 * kWideTileVectors;
    for (std::int64_t i = 0; i < rows; i += 4) {
      const std::int64_t row = kTurned ? rows - 4 - i : i;
      if (wide) {
        solve_tile<kWideTileVectors, kTurned>(n, ldn, row, rows, x + column, ldx);
      } else {
        solve_tile<1, kTurned>(n, ldn, row, rows, x + column, ldx);
      }
    }
    column += wide ? 16 * kWideTileVectors : 16;
  }
}

/// U, from the state before the chunk.
TROUPE_INLINE void news_of_chunk(DeltaChunk& c, const float* state) {
  delta_product(c.padded, c.k, c.ldk, 1, state, c.ldv, 0, c.kp, c.vp, c.u, c.ldv, false);
  for (std::int64_t row = 0; row < c.padded; ++row) {
    const Vec growth = set(c.growth[row]), beta = set(c.beta[row]);
    for (std::int64_t i = row * c.ldv; i < row * c.ldv + c.vp; i += 16)
      store(c.u + i, mul(beta, fnma(growth, load(c.u + i), load(c.v + i))));
  }
  solve<false>(c.n, c.ldc, c.padded, c.vp, c.u, c.ldv);
}

/// The state behind the chunk; `next` may be `state`.
TROUPE_INLINE void pass_state_on(const DeltaChunk& c, const float* state, float* next) {
  const Vec last = set(c.last);
  for (std::int64_t i = 0; i < c.state_floats(); i += 16) store(next + i, mul(last, load(state + i)));
  delta_product(c.kp, c.kd, 1, c.ldk, c.u, c.ldv, 0, c.padded, c.vp, next, c.ldv, true);
}

/// out of a chunk; `state` is the one before it.
TROUPE_INLINE void chunk_out(const DeltaChunk& c, const DeltaRule& a, std::int64_t head, std::int64_t begin,
                             const float* state, float* rows) {
  delta_product(c.padded, c.q, c.ldk, 1, state, c.ldv, 0, c.kp, c.vp, rows, c.ldv, false);
  scale_rows(rows, c.growth, c.padded, c.vp, c.ldv, rows);
  for (std::int64_t i = 0; i < c.padded; i += 16)
    delta_product(16, c.p + i * c.ldc, c.ldc, 1, c.u, c.ldv, 0, i + 16, c.vp, rows + i * c.ldv, c.ldv, true);
  for (std::int64_t row = 0; row < c.rows; ++row) {
    write_row(a.out + ((begin + row) * a.value_heads + head) * a.value_dim, a.value_dim,
              [&](std::int64_t i) __attribute__((always_inline)) { return load(rows + row * c.ldv + i); });
  }
}

/// A state of the caller, padded, or zeros.
TROUPE_INLINE void read_state(const DeltaChunk& c, const DeltaRule& a, const float* from, float* state) {
  clear(state, c.kp * c.ldv);
  if (from != nullptr) pad_rows(from, a.value_dim, a.key_dim, a.value_dim, state, c.ldv, c.kp);
}

TROUPE_INLINE void write_state(const DeltaChunk& c, const DeltaRule& a, const float* state, float* to) {
  for (std::int64_t row = 0; row < a.key_dim; ++row)
    for (std::int64_t i = 0; i < a.value_dim; i += 16)
      store(to + row * a.value_dim + i, load(state + row * c.ldv + i), first(a.value_dim - i));
}

void delta_chunks(const DeltaTask& t) {
  const DeltaRule& a = *t.rule;
  const bool with_out = a.out != nullptr;
  const std::int64_t state_floats = a.key_dim * a.value_dim;
  DeltaChunk c;
  float* rows = place_chunk(c, a, t.scratch);
  float* states = rows + kDeltaChunk * c.ldv;
  for (std::int64_t i = 0; i < t.heads; ++i)
    read_state(c, a, a.state + (t.head + i) * state_floats, states + i * c.state_floats());
  for (std::int64_t begin = 0; begin < a.rows; begin += kDeltaChunk) {
    read_keys(c, a, t.head * a.key_heads / a.value_heads, begin, with_out);
    for (std::int64_t i = 0; i < t.heads; ++i) {
      float* state = states + i * c.state_floats();
      read_values(c, a, t.head + i, begin, with_out);
      news_of_chunk(c, state);
      if (with_out) chunk_out(c, a, t.head + i, begin, state, rows);
      pass_state_on(c, state, state);
    }
  }
  for (std::int64_t i = 0; i < t.heads; ++i)
    write_state(c, a, states + i * c.state_floats(), a.state + (t.head + i) * state_floats);
  streams_end();
}
