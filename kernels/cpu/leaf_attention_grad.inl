// Backward pass of attention. Included inside the namespace of one instruction set.
//
// Per block of query rows: p = exp(scale q k^T - lse), ds = scale p (dout v^T - delta) with delta = dout . out, then
// dq = ds k, dk += ds^T q, dv += p^T dout. (Dao et al., 2022, arXiv:2205.14135, appendix B.4.)

/// Row-major keys or values of one head as panels: rows [0, n) of `source`, [n/16][head_dim][16]; rows behind n are 0.
TROUPE_INLINE void pack_panels(const float* source, std::int64_t stride, std::int64_t n, std::int64_t head_dim,
                               float* panels) {
  for (std::int64_t begin = 0; begin < n; begin += 16) {
    const float* block = source + begin * stride;
    transpose_rows([block, stride](int i) { return block + i * stride; }, n - begin < 16 ? n - begin : 16, head_dim,
                   panels, 16);
    panels += 16 * head_dim;
  }
}

/// One segment and kv head, and the working memory of the pass over it.
struct GradPass {
  const AttentionGradTask* task;
  const AttentionGradSegment* segment;
  std::int64_t hd, keys;
  SpanView key_spans[2];    ///< Panels of the keys: prefix, own.
  SpanView value_spans[2];  ///< Panels of the values.
  RowRun key_rows[2];
  std::int64_t ld;
  float* p;       ///< [kAttentionGradRows][ld]
  float* ds;      ///< [kAttentionGradRows][ld]
  float* packed;  ///< [head_dim][6]
};

TROUPE_INLINE GradPass begin_pass(const AttentionGradTask& t, const AttentionGradSegment& s) {
  GradPass pass{};
  pass.task = &t;
  pass.segment = &s;
  pass.hd = t.shape.head_dim;
  pass.keys = s.prefix.count + s.own.count;
  pass.ld = padded_keys(pass.keys);
  pass.p = t.scratch;
  pass.ds = pass.p + kAttentionGradRows * pass.ld;
  pass.packed = pass.ds + kAttentionGradRows * pass.ld;
  float* panels = pass.packed + 2 * kAttentionTileRows * pass.hd;
  const KeyGrad* parts[2] = {&s.prefix, &s.own};
  for (int i = 0; i < 2; ++i) {
    const std::int64_t n = parts[i]->count;
    const std::int64_t floats = (n + 15) / 16 * 16 * pass.hd;
    const float* k = parts[i]->k + t.kv_head * pass.hd;
    if (n == 0) continue;
    pack_panels(k, t.strides.kv, n, pass.hd, panels);
    pass.key_spans[i] = {panels, nullptr, 0, 0, 0, n};
    panels += floats;
    pack_panels(parts[i]->v + t.kv_head * pass.hd, t.strides.kv, n, pass.hd, panels);
    pass.value_spans[i] = {panels, nullptr, 0, 0, 0, n};
    panels += floats;
    pass.key_rows[i] = {k, t.strides.kv, n};
  }
  return pass;
}

/// a [rows, head_dim] times the panels of all keys: out [rows][ld], six rows at a time.
TROUPE_INLINE void times_panels(const GradPass& pass, const float* a, std::int64_t stride, std::int64_t rows,
                                float scale, const SpanView* spans, std::int64_t keys, float* out) {
  for (std::int64_t begin = 0; begin < rows; begin += kAttentionTileRows) {
    const std::int64_t n = rows - begin < kAttentionTileRows ? rows - begin : kAttentionTileRows;
    const float* block = a + begin * stride;
    pack_scaled([block, stride](int i) { return block + i * stride; }, n, pass.hd, scale, pass.packed);
    ScoreTile tile{pass.packed, n, pass.hd, out + begin * pass.ld, pass.ld, {}};
    score_keys(tile, spans, 0, keys);
  }
}

/// p and ds of query row `row`, from its scores and dout v^T; 0 for keys it does not see, up to `keys`.
TROUPE_INLINE void row_gradients(const GradPass& pass, std::int64_t row, std::int64_t head, std::int64_t keys, float* p,
                                 float* ds) {
  const AttentionGradTask& t = *pass.task;
  const AttentionGradSegment& s = *pass.segment;
  const float* out = s.out + row * t.strides.out + head * pass.hd;
  const float* dout = s.dout + row * t.strides.out + head * pass.hd;
  Vec dot = zero();
  for (std::int64_t d = 0; d < pass.hd; d += 16) dot = fma(load(out + d), load(dout + d), dot);
  const Vec delta = set(sum_lanes(dot));
  const Vec lse = set(s.lse[row * t.shape.heads + head]);
  const Vec scale = set(t.shape.scale);
  const std::int64_t visible = pass.keys - s.rows + row + 1;
  for (std::int64_t i = 0; i < keys; i += 16) {
    const Mask m = first(visible - i > 0 ? visible - i : 0);
    const Vec probability = keep(m, exp(sub(load(p + i), lse)));
    const Vec slope = keep(m, mul(mul(probability, scale), sub(load(ds + i), delta)));
    store(p + i, probability);
    store(ds + i, slope);
  }
}

/// target[key] += sum over `rows` query rows of weights[row][key] source[row], for keys [0, keys), six at a time.
TROUPE_INLINE void add_to_keys(const GradPass& pass, const float* weights, const float* source, std::int64_t stride,
                               std::int64_t rows, std::int64_t keys, bool values) {
  const AttentionGradTask& t = *pass.task;
  const KeyGrad* parts[2] = {&pass.segment->prefix, &pass.segment->own};
  const RowRun run{source, stride, rows};
  std::int64_t offset = 0;
  for (int i = 0; i < 2 && offset < keys; ++i) {
    float* target = (values ? parts[i]->dv : parts[i]->dk) + t.kv_head * pass.hd;
    const std::int64_t count = parts[i]->count < keys - offset ? parts[i]->count : keys - offset;
    for (std::int64_t key = 0; key < count; key += kAttentionTileRows) {
      const std::int64_t n = count - key < kAttentionTileRows ? count - key : kAttentionTileRows;
      combine(n, weights + offset + key, 1, pass.ld, &run, 0, rows, pass.hd, target + key * t.strides.dkv,
              t.strides.dkv, true);
    }
    offset += parts[i]->count;
  }
}

TROUPE_INLINE void grad_block(const GradPass& pass, std::int64_t head, std::int64_t begin, std::int64_t rows) {
  const AttentionGradTask& t = *pass.task;
  const AttentionGradSegment& s = *pass.segment;
  const std::int64_t keys = pass.keys - s.rows + begin + rows;  // what the last row of the block sees
  const float* q = s.q + begin * t.strides.q + head * pass.hd;
  const float* dout = s.dout + begin * t.strides.out + head * pass.hd;
  times_panels(pass, q, t.strides.q, rows, t.shape.scale, pass.key_spans, keys, pass.p);
  times_panels(pass, dout, t.strides.out, rows, 1.0f, pass.value_spans, keys, pass.ds);
  for (std::int64_t i = 0; i < rows; ++i) {
    row_gradients(pass, begin + i, head, keys, pass.p + i * pass.ld, pass.ds + i * pass.ld);
  }
  for (std::int64_t i = 0; i < rows; i += kAttentionTileRows) {
    const std::int64_t n = rows - i < kAttentionTileRows ? rows - i : kAttentionTileRows;
    combine(n, pass.ds + i * pass.ld, pass.ld, 1, pass.key_rows, 0, keys, pass.hd,
            s.dq + (begin + i) * t.strides.dq + head * pass.hd, t.strides.dq, false);
  }
  add_to_keys(pass, pass.ds, q, t.strides.q, rows, keys, false);
  add_to_keys(pass, pass.p, dout, t.strides.out, rows, keys, true);
}

void attention_grad_task(const AttentionGradTask& t) {
  const std::int64_t group = t.shape.heads / t.shape.kv_heads;
  for (std::int64_t i = 0; i < t.count; ++i) {
    const AttentionGradSegment& s = t.segments[i];
    if (s.rows == 0) continue;
    const GradPass pass = begin_pass(t, s);
    for (std::int64_t g = 0; g < group; ++g) {
      for (std::int64_t row = 0; row < s.rows; row += kAttentionGradRows) {
        const std::int64_t rows = s.rows - row < kAttentionGradRows ? s.rows - row : kAttentionGradRows;
        grad_block(pass, t.kv_head * group + g, row, rows);
      }
    }
  }
}
