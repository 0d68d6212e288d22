// The gated delta rule, token by token. Included inside the namespace of one instruction set. No product is fused with
// a sum here: these are the bits that training and decoding share.

/// y = x / sqrt(sum x^2 + 1e-6) * factor for `rows` rows of n, 0 up to `ldy`; inverse[row] = 1 / sqrt(...). Each sum is one
/// chain in float64; rows side by side hide its latency.
TROUPE_INLINE void unit_rows(const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t n, float factor, float* y,
                             std::int64_t ldy, float* inverse) {
  constexpr std::int64_t kSide = 8;
  for (std::int64_t first_row = 0; first_row < rows; first_row += kSide) {
    const float* row[kSide];
    double sums[kSide] = {};
    for (std::int64_t j = 0; j < kSide; ++j) row[j] = x + (first_row + j < rows ? first_row + j : rows - 1) * ldx;
    for (std::int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 8
      for (std::int64_t j = 0; j < kSide; ++j) {
        const auto v = static_cast<double>(row[j][i]);
        sums[j] += v * v;
      }
    }
    for (std::int64_t j = 0; j < kSide && first_row + j < rows; ++j) {
      inverse[first_row + j] = static_cast<float>(1 / __builtin_sqrt(sums[j] + 1e-6));
      const Vec scale = set(inverse[first_row + j]);
      for (std::int64_t i = 0; i < ldy; i += 16) {
        const Mask m = first(n > i ? n - i : 0);
        store(y + (first_row + j) * ldy + i, mul(mul(load(row[j] + i, m), scale), set(factor)), first(ldy - i));
      }
    }
  }
}

/// Some rows of one value head. `state`: [key_dim], `ld` floats apart.
struct DeltaSteps {
  const float* q;
  const float* k;  ///< [rows][key_dim], normalised.
  const float* factor;
  const float* beta;
  const float* v;
  float* out;
  float* state;
  std::int64_t ld, rows, key_dim, beta_stride, v_stride, out_stride;
};

/// Vector j of kVectors: only a single one may be cut off.
template <int kVectors>
TROUPE_INLINE Vec load_part(const float* p, int j, Mask m) {
  if constexpr (kVectors == 1) return load(p, m);
  return load(p + 16 * j);
}
template <int kVectors>
TROUPE_INLINE void store_part(float* p, int j, Vec v, Mask m) {
  if constexpr (kVectors == 1) return store(p, v, m);
  store(p + 16 * j, v);
}

/// kVectors vectors of columns. The pass that adds a row to the state is also the one in which the next
/// row reads it: a state is loaded and stored once a row.
template <int kVectors>
void delta_columns(const DeltaSteps& d, std::int64_t column, Mask m) {
  Vec known[kVectors], u[kVectors], sum[kVectors];
  for (int j = 0; j < kVectors; ++j) known[j] = zero();
  for (std::int64_t i = 0; i < d.key_dim; ++i) {
    float* s = d.state + i * d.ld + column;
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const Vec decayed = mul(load_part<kVectors>(s, j, m), set(d.factor[0]));
      store_part<kVectors>(s, j, decayed, m);
      known[j] = add(known[j], mul(decayed, set(d.k[i])));
    }
  }
  for (std::int64_t row = 0; row < d.rows; ++row) {
    const float* k = d.k + row * d.key_dim;
    const float* q = d.q + row * d.key_dim;
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const Vec v = load_part<kVectors>(d.v + row * d.v_stride + column, j, m);
      u[j] = mul(set(d.beta[row * d.beta_stride]), sub(v, known[j]));
      sum[j] = known[j] = zero();
    }
    const bool more = row + 1 < d.rows;
    const Vec factor = set(more ? d.factor[row + 1] : 0.0f);
    const float* next = k + d.key_dim;
    for (std::int64_t i = 0; i < d.key_dim; ++i) {
      float* s = d.state + i * d.ld + column;
      const Vec key = set(k[i]), query = set(q[i]);
      if (more) {
        const Vec next_key = set(next[i]);
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) {
          Vec state = add(load_part<kVectors>(s, j, m), mul(key, u[j]));
          sum[j] = add(sum[j], mul(state, query));
          state = mul(state, factor);
          store_part<kVectors>(s, j, state, m);
          known[j] = add(known[j], mul(state, next_key));
        }
      } else {
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) {
          const Vec state = add(load_part<kVectors>(s, j, m), mul(key, u[j]));
          sum[j] = add(sum[j], mul(state, query));
          store_part<kVectors>(s, j, state, m);
        }
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) store_part<kVectors>(d.out + row * d.out_stride + column, j, sum[j], m);
  }
}

/// Columns [column, column + 16 kVectors) with the state in `block`, side by side, while many rows pass.
template <int kVectors>
TROUPE_INLINE void delta_in_block(DeltaSteps d, std::int64_t column, Mask m, float* block) {
  constexpr std::int64_t kWidth = 16 * kVectors;
  constexpr std::int64_t kWorthCopying = 4;  // rows
  if (d.rows < kWorthCopying) return delta_columns<kVectors>(d, column, m);
  float* state = d.state + column;
  const std::int64_t ld = d.ld;
  const auto move = [&](bool in) __attribute__((always_inline)) {
    for (std::int64_t i = 0; i < d.key_dim; ++i) {
      for (int j = 0; j < kVectors; ++j) {
        float* here = block + i * kWidth + 16 * j;
        if (in) {
          store(here, load_part<kVectors>(state + i * ld, j, m));
        } else {
          store_part<kVectors>(state + i * ld, j, load(here), m);
        }
      }
    }
  };
  move(true);
  d.v += column;
  d.out += column;
  d.state = block;
  d.ld = kWidth;
  delta_columns<kVectors>(d, 0, m);
  move(false);
}

/// exp(decay) of `rows` rows of one value head.
TROUPE_INLINE void decay_factors(const float* decay, std::int64_t stride, std::int64_t rows, float* factor) {
  for (std::int64_t row = 0; row < rows; ++row) factor[row] = decay[row * stride];
  exp_array(factor, factor, rows);
}

void delta_head(const DeltaTask& t) {
  const DeltaRule& a = *t.rule;
  const std::int64_t keys = a.key_heads * a.key_dim, row_floats = 2 * keys + a.value_heads * a.value_dim;
  const std::int64_t key_head = t.head * a.key_heads / a.value_heads;
  float* k = t.scratch;
  float* q = k + kDeltaRows * a.key_dim;
  float* factor = q + kDeltaRows * a.key_dim;
  float* inverse = factor + kDeltaRows;
  float* block = inverse + kDeltaRows;
  for (std::int64_t begin = 0; begin < a.rows; begin += kDeltaRows) {
    const std::int64_t rows = a.rows - begin < kDeltaRows ? a.rows - begin : kDeltaRows;
    const float* x = a.qkv + begin * row_floats;
    const auto scale = static_cast<float>(1 / __builtin_sqrt(static_cast<double>(a.key_dim)));
    unit_rows(x + key_head * a.key_dim, row_floats, rows, a.key_dim, scale, q, a.key_dim, inverse);
    unit_rows(x + keys + key_head * a.key_dim, row_floats, rows, a.key_dim, 1, k, a.key_dim, inverse);
    decay_factors(a.decay + begin * a.value_heads + t.head, a.value_heads, rows, factor);
    const DeltaSteps d{q,
                       k,
                       factor,
                       a.beta + begin * a.value_heads + t.head,
                       x + 2 * keys + t.head * a.value_dim,
                       a.out + (begin * a.value_heads + t.head) * a.value_dim,
                       a.state + t.head * a.key_dim * a.value_dim,
                       a.value_dim,
                       rows,
                       a.key_dim,
                       a.value_heads,
                       row_floats,
                       a.value_heads * a.value_dim};
    std::int64_t column = 0;
    for (; a.value_dim - column >= 16 * kWideTileVectors; column += 16 * kWideTileVectors)
      delta_in_block<kWideTileVectors>(d, column, first(16), block);
    for (; column < a.value_dim; column += 16) delta_in_block<1>(d, column, first(a.value_dim - column), block);
  }
}
