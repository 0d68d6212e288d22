// Backward pass of the gated delta rule in chunks. Included inside the namespace of one instruction set.
//
// With the names of leaf_delta_chunk.inl, dS the gradient of the state behind the chunk, and d' = d * G elementwise:
// dU = P^T dO + Kd dS;  dR = (I + beta D)^-T dU;  dP = dO U^T;  dA = -dR U^T below the diagonal;
// dQ = e^g dO S^T + dP' K;  dK = beta X + Y + (M + M^T) K + dP'^T Q
//   with X = -e^g dR S^T, Y = e^{g_last - g} U dS^T, M = beta dA';
// dV = beta dR;  dbeta = rowsum(V dR + K X) + rowsum(dA D);
// dS before = e^{g_last} dS + (e^g Q)^T dO - (beta e^g K)^T dR.
// dg collects what every exponential adds; the decay's gradient is its sum from the row to the chunk's end.

/// What the backward pass of a chunk adds to DeltaChunk.
struct DeltaGradChunk {
  float *dout, *dnews;          ///< dO; dU, then dR: [C][value]
  float *ut;                    ///< U^T: [value][C]
  float *e, *w;                 ///< dP, then dP'; dA, then M + M^T: [C][C]
  float *dq, *dk;               ///< Of the key head: sums over its value heads. [C][key]
  float *by_query, *by_key, *by_tail;  ///< dO S^T, dR S^T, U dS^T; the last is work space, too. [C][key]
  float *turned;                ///< A state's transpose: [value][key]
  float *dsums, *dbeta, *column;  ///< [C]
  float dlast;                  ///< Of g_last.
};

TROUPE_INLINE float* place_grad_chunk(DeltaGradChunk& g, const DeltaChunk& c, float* at) {
  const auto take = [&at](std::int64_t floats) {
    float* const here = at;
    at += floats;
    return here;
  };
  g.dout = take(kDeltaChunk * c.ldv);
  g.dnews = take(kDeltaChunk * c.ldv);
  g.ut = take(c.vp * c.ldc);
  g.e = take(kDeltaChunk * c.ldc);
  g.w = take(kDeltaChunk * c.ldc);
  g.dq = take(kDeltaChunk * c.ldk);
  g.dk = take(kDeltaChunk * c.ldk);
  for (float** part : {&g.by_query, &g.by_key, &g.by_tail}) *part = take(kDeltaChunk * c.ldk);
  g.turned = take(c.vp * c.ldk);
  for (float** column : {&g.dsums, &g.dbeta, &g.column}) *column = take(kDeltaChunk);
  return at;
}

TROUPE_INLINE float row_dot(const float* a, const float* b, std::int64_t n) {
  Vec sum = zero();
  for (std::int64_t i = 0; i < n; i += 16) sum = fma(load(a + i), load(b + i), sum);
  return sum_lanes(sum);
}

/// dU, then dR.
TROUPE_INLINE void gradient_of_news(const DeltaChunk& c, const DeltaGradChunk& g, const float* dstate) {
  for (std::int64_t j = 0; j < c.padded; j += 16)
    delta_product(16, c.p + j, 1, c.ldc, g.dout, c.ldv, j, c.padded, c.vp, g.dnews + j * c.ldv, c.ldv, false);
  delta_product(c.padded, c.kd, c.ldk, 1, dstate, c.ldv, 0, c.kp, c.vp, g.dnews, c.ldv, true);
  solve<true>(c.n, c.ldc, c.padded, c.vp, g.dnews, c.ldv);
}

/// From dO U^T and dR U^T: dP', M, and what they add to dbeta and dg.
TROUPE_INLINE void pair_gradients(const DeltaChunk& c, DeltaGradChunk& g) {
  for (std::int64_t i = 0; i < c.padded; ++i) {
    Vec beta_sum = zero(), gate_sum = zero();
    const Vec minus = set(-c.beta[i]);
    for (std::int64_t j = 0; j <= i; j += 16) {
      const std::int64_t at = i * c.ldc + j;
      const Vec gate = load(c.gates + at), dp = load(g.e + at), minus_da = load(g.w + at);
      beta_sum = fnma(minus_da, load(c.d + at), beta_sum);
      const Vec both = fma(minus_da, load(c.n + at), mul(dp, load(c.p + at)));
      gate_sum = add(gate_sum, both);
      store(g.column + j, sub(load(g.column + j), both));
      store(g.e + at, mul(gate, dp));
      store(g.w + at, keep(first(i - j), mul(mul(minus, gate), minus_da)));
    }
    g.dbeta[i] += sum_lanes(beta_sum);
    g.dsums[i] += sum_lanes(gate_sum);
  }
  for (std::int64_t j = 0; j < c.padded; j += 16) store(g.dsums + j, add(load(g.dsums + j), load(g.column + j)));
}

/// w = w + w^T, from what is below the diagonal.
TROUPE_INLINE void make_symmetric(float* w, std::int64_t ld, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 16) {
    for (std::int64_t j = 0; j <= i; j += 16) {
      Vec v[16];
      for (int r = 0; r < 16; ++r) v[r] = load(w + (i + r) * ld + j);
      transpose(v);
      for (int r = 0; r < 16; ++r) {
        float* to = w + (j + r) * ld + i;
        store(to, i == j ? add(load(to), v[r]) : v[r]);
      }
    }
  }
}

/// dQ, dK, dbeta and dg from what passes between the rows of the chunk; added to what is there.
TROUPE_INLINE void gradients_inside(const DeltaChunk& c, DeltaGradChunk& g) {
  turn(c.u, c.ldv, c.padded, c.vp, g.ut, c.ldc);
  for (std::int64_t i = 0; i < c.padded; i += 16) {
    const std::int64_t at = i * c.ldc;
    delta_product(16, g.dout + i * c.ldv, c.ldv, 1, g.ut, c.ldc, 0, c.vp, i + 16, g.e + at, c.ldc, false);
    delta_product(16, g.dnews + i * c.ldv, c.ldv, 1, g.ut, c.ldc, 0, c.vp, i + 16, g.w + at, c.ldc, false);
  }
  clear(g.column, c.padded);
  pair_gradients(c, g);
  make_symmetric(g.w, c.ldc, c.padded);
  delta_product(c.padded, g.w, c.ldc, 1, c.k, c.ldk, 0, c.padded, c.kp, g.dk, c.ldk, true);
  for (std::int64_t i = 0; i < c.padded; i += 16) {
    delta_product(16, g.e + i * c.ldc, c.ldc, 1, c.k, c.ldk, 0, i + 16, c.kp, g.dq + i * c.ldk, c.ldk, true);
    delta_product(16, g.e + i, 1, c.ldc, c.q, c.ldk, i, c.padded, c.kp, g.dk + i * c.ldk, c.ldk, true);
  }
}

/// dQ, dK, dbeta and dg from what comes from the state before the chunk and goes into the one behind it.
TROUPE_INLINE void gradients_across(const DeltaChunk& c, DeltaGradChunk& g, const float* state, const float* dstate) {
  turn(state, c.ldv, c.kp, c.vp, g.turned, c.ldk);
  delta_product(c.padded, g.dout, c.ldv, 1, g.turned, c.ldk, 0, c.vp, c.kp, g.by_query, c.ldk, false);
  delta_product(c.padded, g.dnews, c.ldv, 1, g.turned, c.ldk, 0, c.vp, c.kp, g.by_key, c.ldk, false);
  turn(dstate, c.ldv, c.kp, c.vp, g.turned, c.ldk);
  delta_product(c.padded, c.u, c.ldv, 1, g.turned, c.ldk, 0, c.vp, c.kp, g.by_tail, c.ldk, false);
  g.dlast = 0;
  for (std::int64_t row = 0; row < c.kp; ++row) g.dlast += row_dot(state + row * c.ldv, dstate + row * c.ldv, c.vp);
  g.dlast *= c.last;
  for (std::int64_t row = 0; row < c.padded; ++row) {
    const Vec growth = set(c.growth[row]), minus = sub(zero(), growth), beta = set(c.beta[row]), tail = set(c.tail[row]);
    Vec by_query = zero(), by_key = zero(), by_tail = zero();
    for (std::int64_t i = row * c.ldk; i < row * c.ldk + c.kp; i += 16) {
      const Vec key = load(c.k + i), dq = mul(growth, load(g.by_query + i)), x = mul(minus, load(g.by_key + i));
      const Vec y = mul(tail, load(g.by_tail + i));
      by_query = fma(load(c.q + i), dq, by_query);
      by_key = fma(key, x, by_key);
      by_tail = fma(key, y, by_tail);
      store(g.dq + i, add(load(g.dq + i), dq));
      store(g.dk + i, add(load(g.dk + i), fma(beta, x, y)));
    }
    const float of_key = sum_lanes(by_key), of_tail = sum_lanes(by_tail);
    g.dbeta[row] = of_key + row_dot(c.v + row * c.ldv, g.dnews + row * c.ldv, c.vp);
    g.dsums[row] = sum_lanes(by_query) + c.beta[row] * of_key - of_tail;
    g.dlast += of_tail;
  }
}

/// dstate becomes the gradient of the state before the chunk.
TROUPE_INLINE void pass_gradient_on(const DeltaChunk& c, const DeltaGradChunk& g, float* dstate) {
  const Vec last = set(c.last);
  for (std::int64_t i = 0; i < c.state_floats(); i += 16) store(dstate + i, mul(last, load(dstate + i)));
  scale_rows(c.q, c.growth, c.padded, c.kp, c.ldk, g.by_tail);
  delta_product(c.kp, g.by_tail, 1, c.ldk, g.dout, c.ldv, 0, c.padded, c.vp, dstate, c.ldv, true);
  for (std::int64_t i = 0; i < c.padded; i += 16)
    store(g.column + i, mul(load(c.beta + i), sub(zero(), load(c.growth + i))));
  scale_rows(c.k, g.column, c.padded, c.kp, c.ldk, g.by_tail);
  delta_product(c.kp, g.by_tail, 1, c.ldk, g.dnews, c.ldv, 0, c.padded, c.vp, dstate, c.ldv, true);
}

/// Through y = factor x / |x|: dx = inverse (factor dy - y (y . dy) / factor).
TROUPE_INLINE void unit_gradient(const float* y, const float* dy, float inverse, float factor, std::int64_t n,
                                 std::int64_t padded, float* dx) {
  const Vec dot = set(row_dot(y, dy, padded) / factor), f = set(factor), scale = set(inverse);
  write_row(dx, n, [&](std::int64_t i) __attribute__((always_inline)) {
    return mul(scale, fnma(load(y + i), dot, mul(f, load(dy + i))));
  });
}

/// A chunk's gradients of queries and keys, into the caller's rows.
TROUPE_INLINE void write_key_gradients(const DeltaChunk& c, const DeltaGradChunk& g, const DeltaRuleGrad& a,
                                       std::int64_t key_head, std::int64_t begin) {
  const std::int64_t keys = a.key_heads * a.key_dim, row_floats = 2 * keys + a.value_heads * a.value_dim;
  const auto scale = static_cast<float>(1 / __builtin_sqrt(static_cast<double>(a.key_dim)));
  for (std::int64_t row = 0; row < c.rows; ++row) {
    float* dx = a.dqkv + (begin + row) * row_floats + key_head * a.key_dim;
    const std::int64_t at = row * c.ldk;
    unit_gradient(c.q + at, g.dq + at, c.q_inverse[row], scale, a.key_dim, c.kp, dx);
    unit_gradient(c.k + at, g.dk + at, c.k_inverse[row], 1, a.key_dim, c.kp, dx + keys);
  }
}

/// Those of a value head's values, decays and betas.
TROUPE_INLINE void write_value_gradients(const DeltaChunk& c, const DeltaGradChunk& g, const DeltaRuleGrad& a,
                                         std::int64_t head, std::int64_t begin) {
  const std::int64_t keys = a.key_heads * a.key_dim, row_floats = 2 * keys + a.value_heads * a.value_dim;
  float sum = g.dlast;
  for (std::int64_t row = c.rows - 1; row >= 0; --row) {
    const Vec beta = set(c.beta[row]);
    write_row(a.dqkv + (begin + row) * row_floats + 2 * keys + head * a.value_dim, a.value_dim,
              [&](std::int64_t i) __attribute__((always_inline)) { return mul(beta, load(g.dnews + row * c.ldv + i)); });
    sum += g.dsums[row];
    a.ddecay[(begin + row) * a.value_heads + head] = sum;
    a.dbeta[(begin + row) * a.value_heads + head] = g.dbeta[row];
  }
}

/// What is kept of every chunk and value head: the state before it and U.
struct DeltaHistory {
  float* states;
  float* news;
  std::int64_t heads, state_floats, news_floats;

  [[nodiscard]] float* state(std::int64_t chunk, std::int64_t head) const {
    return states + (chunk * heads + head) * state_floats;
  }
  [[nodiscard]] float* u(std::int64_t chunk, std::int64_t head) const {
    return news + (chunk * heads + head) * news_floats;
  }
};

/// The forward pass of the value heads of a key head, from the states before chunk 0.
TROUPE_INLINE void keep_history(DeltaChunk& c, const DeltaRule& a, std::int64_t key_head, const DeltaHistory& history) {
  for (std::int64_t chunk = 0; chunk * kDeltaChunk < a.rows; ++chunk) {
    const std::int64_t begin = chunk * kDeltaChunk;
    read_keys(c, a, key_head, begin, false);
    for (std::int64_t i = 0; i < history.heads; ++i) {
      float* state = history.state(chunk, i);
      c.u = history.u(chunk, i);
      read_values(c, a, key_head * history.heads + i, begin, false);
      news_of_chunk(c, state);
      if (begin + kDeltaChunk < a.rows) pass_state_on(c, state, history.state(chunk + 1, i));
    }
  }
}

/// A chunk's gradients of one value head; those of queries and keys are added to what is there.
TROUPE_INLINE void head_gradients(DeltaChunk& c, DeltaGradChunk& g, const DeltaRuleGrad& a, std::int64_t head,
                                  std::int64_t begin, const float* state, float* dstate) {
  pad_rows(a.dout + (begin * a.value_heads + head) * a.value_dim, a.value_heads * a.value_dim, c.rows, a.value_dim,
           g.dout, c.ldv, c.padded);
  gradient_of_news(c, g, dstate);
  gradients_across(c, g, state, dstate);
  gradients_inside(c, g);
  pass_gradient_on(c, g, dstate);
  write_value_gradients(c, g, a, head, begin);
}

/// The value heads of one key head: forward, then the chunks from the last to the first.
void delta_grad(const DeltaGradTask& t) {
  const DeltaRuleGrad& a = *t.rule;
  const DeltaRule inputs{a.qkv, a.decay, a.beta, nullptr, nullptr, a.rows, a.key_heads, a.value_heads, a.key_dim,
                         a.value_dim};
  const std::int64_t heads = a.value_heads / a.key_heads, floats = a.key_dim * a.value_dim;
  const std::int64_t first_head = t.key_head * heads, chunks = (a.rows + kDeltaChunk - 1) / kDeltaChunk;
  DeltaChunk c;
  DeltaGradChunk g;
  float* dstates = place_grad_chunk(g, c, place_chunk(c, inputs, t.scratch));
  float* const states = dstates + heads * c.state_floats();
  const DeltaHistory history{states, states + chunks * heads * c.state_floats(), heads, c.state_floats(),
                             kDeltaChunk * c.ldv};
  const auto of_head = [&](const float* x, std::int64_t i) { return x == nullptr ? x : x + (first_head + i) * floats; };
  for (std::int64_t i = 0; i < heads; ++i) {
    read_state(c, inputs, of_head(a.dstate_after, i), dstates + i * c.state_floats());
    read_state(c, inputs, of_head(a.state, i), history.state(0, i));
  }
  keep_history(c, inputs, t.key_head, history);
  for (std::int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    const std::int64_t begin = chunk * kDeltaChunk;
    read_keys(c, inputs, t.key_head, begin, true);
    clear(g.dq, c.padded * c.ldk);
    clear(g.dk, c.padded * c.ldk);
    for (std::int64_t i = 0; i < heads; ++i) {
      c.u = history.u(chunk, i);
      read_values(c, inputs, first_head + i, begin, true);
      head_gradients(c, g, a, first_head + i, begin, history.state(chunk, i), dstates + i * c.state_floats());
    }
    write_key_gradients(c, g, a, t.key_head, begin);
  }
  streams_end();
  if (a.dstate == nullptr) return;
  for (std::int64_t i = 0; i < heads; ++i)
    write_state(c, inputs, dstates + i * c.state_floats(), a.dstate + (first_head + i) * floats);
}
