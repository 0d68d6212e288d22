// Attention with operands of bfloat16: its products are those of the precision's table, its softmax is float32. Included
// inside the namespace of one instruction set.
//
// Keys are counted from the segment's first, whatever spans they lie in: key t belongs to block t / 32 of the sum over
// keys. A query sees the blocks up to its own, with zeros for what it does not see.

/// Panels of 16 numbers of a row of n.
TROUPE_INLINE std::int64_t pair_panel(std::int64_t n) { return padded(n) / 2 * 16; }

/// The keys of a segment, one after the other.
struct KeyWalk {
  const KeySpan* span;
  std::int64_t at = 0;  ///< In the span.

  /// The span of the next key.
  const KeySpan& here() {
    while (at == span->count) ++span, at = 0;
    return *span;
  }
};

/// Whether every span is a page that is full but for the last: key t is then in panel t / 16.
TROUPE_INLINE bool in_whole_panels(const AttentionSegment& s) {
  for (std::int64_t i = 0; i < s.span_count; ++i) {
    if (s.spans[i].layout != KvLayout::kPages) return false;
    if (i + 1 < s.span_count && s.spans[i].count % 16 != 0) return false;
  }
  return true;
}

/// Where a page has 16 keys from slot `key` on (a multiple of 16), and the values of `key` and its neighbour.
TROUPE_INLINE const float* page_keys(const KeySpan& page, std::int64_t kv_head, std::int64_t key, std::int64_t hd) {
  return page.k + (kv_head * page.stride + key) / 2 * hd;
}
TROUPE_INLINE const float* page_pair(const KeySpan& page, std::int64_t kv_head, std::int64_t key, std::int64_t hd) {
  return page.v + (kv_head * page.stride + key) / 2 * hd;
}

/// One key of a page, as floats.
TROUPE_INLINE void unpack_key(const KeySpan& page, std::int64_t kv_head, std::int64_t key, std::int64_t hd, float* to) {
  const float* pairs = page_keys(page, kv_head, key / 16 * 16, hd);
  for (std::int64_t d = 0; d < hd; d += 2) {
    const Vec pair = load(pairs + d * 8);
    alignas(64) float halves[2][16];
    store(halves[0], low_half(pair));
    store(halves[1], high_half(pair));
    to[d] = halves[0][key % 16];
    to[d + 1] = halves[1][key % 16];
  }
}
TROUPE_INLINE void unpack_value(const KeySpan& page, std::int64_t kv_head, std::int64_t key, std::int64_t hd, float* to) {
  const float* pairs = page_pair(page, kv_head, key, hd);
  for (std::int64_t d = 0; d < hd; d += 16)
    store(to + d, key % 2 == 0 ? low_half(load(pairs + d)) : high_half(load(pairs + d)));
}

/// Keys [0, count) of one kv head as panels along the channels.
TROUPE_INLINE void pack_pair_keys(const PairAttentionTask& t, std::int64_t count, float* panels) {
  const std::int64_t hd = t.shape.head_dim;
  alignas(64) float copies[16 * 256];
  KeyWalk walk{t.segment->spans};
  for (std::int64_t begin = 0; begin < count; begin += 16, panels += pair_panel(hd)) {
    const std::int64_t n = count - begin < 16 ? count - begin : 16;
    const KeySpan& first_span = walk.here();
    if (first_span.layout == KvLayout::kPages && walk.at % 16 == 0 && first_span.count - walk.at >= n) {
      const float* pairs = page_keys(first_span, t.kv_head, walk.at, hd);
      for (std::int64_t i = 0; i < hd * 8; i += 16) store(panels + i, load(pairs + i, first(n)));
      for (std::int64_t i = hd * 8; i < pair_panel(hd); i += 16) store(panels + i, zero());
      walk.at += n;
      continue;
    }
    const float* rows[16];
    for (std::int64_t j = 0; j < n; ++j, ++walk.at) {
      const KeySpan& span = walk.here();
      rows[j] = span.k + walk.at * span.stride + t.kv_head * hd;
      if (span.layout == KvLayout::kRows) continue;
      unpack_key(span, t.kv_head, walk.at, hd, copies + j * hd);
      rows[j] = copies + j * hd;
    }
    t.products->pack_panel(rows, n, hd, panels);
  }
}

/// Rows [0, count) as panels of columns, 32 rows a block; next() is where the next row begins.
template <class Next>
TROUPE_INLINE void pack_pair_columns_of(const ProductTable& products, std::int64_t count, std::int64_t cols,
                                        const Next& next, float* panels) {
  for (std::int64_t begin = 0; begin < count; begin += 32) {
    const float* rows[32];
    const std::int64_t n = count - begin < 32 ? count - begin : 32;
    for (std::int64_t j = 0; j < n; ++j) rows[j] = next();
    for (std::int64_t c = 0; c < cols; c += 16)
      products.pack_columns(rows, n, c, 16, panels + c / 16 * pair_panel(count) + begin * 8);
  }
}

/// Values [0, count) of one kv head as panels of columns.
TROUPE_INLINE void pack_pair_values(const PairAttentionTask& t, std::int64_t count, float* panels) {
  const std::int64_t hd = t.shape.head_dim;
  KeyWalk walk{t.segment->spans};
  if (!in_whole_panels(*t.segment)) {
    alignas(64) float copies[32 * 256];
    std::int64_t next = 0;
    const auto row = [&]() -> const float* {
      const KeySpan& span = walk.here();
      const std::int64_t key = walk.at++;
      if (span.layout == KvLayout::kRows) return span.v + key * span.stride + t.kv_head * hd;
      float* copy = copies + next++ % 32 * hd;
      unpack_value(span, t.kv_head, key, hd, copy);
      return copy;
    };
    return pack_pair_columns_of(*t.products, count, hd, row, panels);
  }
  for (std::int64_t key = 0; key < padded(count); key += 2) {  // pages hold what a panel does
    const float* pairs = nullptr;
    if (key < count) {
      const KeySpan& span = walk.here();
      pairs = page_pair(span, t.kv_head, walk.at, hd);
      walk.at += walk.at + 1 < span.count ? 2 : 1;
    }
    for (std::int64_t c = 0; c < hd; c += 16) {
      Vec v = pairs == nullptr ? zero() : load(pairs + c);
      if (key + 1 == count) v = join(low_half(v), zero());
      store(panels + c / 16 * pair_panel(count) + key * 8, v);
    }
  }
}

TROUPE_INLINE void scale_floats(float* x, std::int64_t n, Vec factor) {
  for (std::int64_t i = 0; i < n; i += 16) store(x + i, mul(load(x + i), factor));
}
TROUPE_INLINE void clear_floats(float* x, std::int64_t begin, std::int64_t end) {
  for (; begin < end; begin += 16) store(x + begin, zero());
}

/// What a task's rows pass through.
struct PairPass {
  const float* key_panels;
  const float* value_panels;
  std::int64_t value_panel, ld;
  float *queries, *scores, *out, *packed;
};

/// Pairs [pair, pair + rows) of (query, head of the group).
TROUPE_INLINE void pair_attention_block(const PairAttentionTask& t, const PairPass& pass, std::int64_t pair,
                                        std::int64_t rows) {
  const AttentionSegment& s = *t.segment;
  const std::int64_t hd = t.shape.head_dim, group = t.shape.heads / t.shape.kv_heads;
  const auto visible = [&](std::int64_t i) { return t.keys - s.rows + (pair + i) / group + 1; };
  const auto head = [&](std::int64_t i) { return t.kv_head * group + (pair + i) % group; };
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* q = s.q + (pair + i) / group * t.q_stride + head(i) * hd;
    for (std::int64_t d = 0; d < hd; d += 16) store(pass.queries + i * hd + d, load(q + d));
  }
  const std::int64_t keys = visible(rows - 1), wide = (keys + 15) / 16 * 16;
  t.products->rows({pass.queries, rows, hd, hd, pass.key_panels, pair_panel(hd), wide, pass.scores, pass.ld, pass.packed});
  float inverse[kPairAttentionRows], lse[kPairAttentionRows];
  const Vec scale = set(t.shape.scale);
  for (std::int64_t i = 0; i < rows; ++i) {
    float* scores = pass.scores + i * pass.ld;
    scale_floats(scores, visible(i), scale);
    lse[i] = softmax_row(scores, visible(i), &inverse[i]);
    clear_floats(scores, (visible(i) + 15) / 16 * 16, keys);
  }
  t.products->rows({pass.scores, rows, pass.ld, keys, pass.value_panels, pass.value_panel, hd, pass.out, hd, pass.packed});
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = (pair + i) / group;
    float* target = s.out + row * t.out_stride + head(i) * hd;
    for (std::int64_t d = 0; d < hd; d += 16) store(target + d, mul(load(pass.out + i * hd + d), set(inverse[i])));
    if (s.lse != nullptr) s.lse[row * t.shape.heads + head(i)] = lse[i];
  }
}

TROUPE_INLINE bool attend_in_pages(const PairAttentionTask& t);

void pair_attention_task(const PairAttentionTask& t) {
  if (attend_in_pages(t)) return;
  const std::int64_t hd = t.shape.head_dim, group = t.shape.heads / t.shape.kv_heads;
  const std::int64_t seen = t.keys - t.segment->rows + t.row_end;  // by the last row
  PairPass pass{};
  float* at = t.scratch;
  const auto take = [&at](std::int64_t floats) {
    float* const here = at;
    at += (floats + 15) / 16 * 16;
    return here;
  };
  float* const keys = take((seen + 15) / 16 * pair_panel(hd));
  float* const values = take(hd / 16 * pair_panel(seen));
  pass.key_panels = keys;
  pass.value_panels = values;
  pass.value_panel = pair_panel(seen);
  pass.ld = padded_keys(seen);
  pass.queries = take(kPairAttentionRows * hd);
  pass.out = take(kPairAttentionRows * hd);
  pass.scores = take(kPairAttentionRows * pass.ld);
  pass.packed = at;
  pack_pair_keys(t, seen, keys);
  pack_pair_values(t, seen, values);
  const std::int64_t end = t.row_end * group;
  for (std::int64_t pair = t.row_begin * group; pair < end; pair += kPairAttentionRows)
    pair_attention_block(t, pass, pair, end - pair < kPairAttentionRows ? end - pair : kPairAttentionRows);
}

/// One segment and kv head of the backward pass.
struct PairGradPass {
  const AttentionGradTask* task;
  const AttentionGradSegment* segment;
  std::int64_t hd, keys, ld;
  float *key_rows, *value_rows, *key_columns;  ///< Panels: keys and values along the channels, keys along the keys.
  float *query_columns, *dout_columns;         ///< Panels of a block of rows, along the rows.
  float *p, *ds;                               ///< [kPairGradRows][ld]
  float *dk, *dv;                              ///< [keys][hd]
  float* packed;
};

TROUPE_INLINE PairGradPass begin_pair_pass(const AttentionGradTask& t, const AttentionGradSegment& s) {
  PairGradPass pass{};
  pass.task = &t;
  pass.segment = &s;
  pass.hd = t.shape.head_dim;
  pass.keys = s.prefix.count + s.own.count;
  pass.ld = padded_keys(pass.keys);
  const std::int64_t panels = (pass.keys + 15) / 16;
  float* at = t.scratch;
  const auto take = [&at](std::int64_t floats) {
    float* const here = at;
    at += (floats + 15) / 16 * 16;
    return here;
  };
  pass.key_rows = take(panels * pair_panel(pass.hd));
  pass.value_rows = take(panels * pair_panel(pass.hd));
  pass.key_columns = take(pass.hd / 16 * pair_panel(pass.keys));
  pass.query_columns = take(pass.hd / 16 * pair_panel(kPairGradRows));
  pass.dout_columns = take(pass.hd / 16 * pair_panel(kPairGradRows));
  pass.p = take(kPairGradRows * pass.ld);
  pass.ds = take(kPairGradRows * pass.ld);
  pass.dk = take(pass.keys * pass.hd);
  pass.dv = take(pass.keys * pass.hd);
  pass.packed = at;
  clear_floats(pass.dk, 0, pass.keys * pass.hd);
  clear_floats(pass.dv, 0, pass.keys * pass.hd);
  const auto row = [&](std::int64_t i, bool values) {
    const bool own = i >= s.prefix.count;
    const KeyGrad& part = own ? s.own : s.prefix;
    return (values ? part.v : part.k) + (own ? i - s.prefix.count : i) * t.strides.kv + t.kv_head * pass.hd;
  };
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    const std::int64_t n = pass.keys - panel * 16 < 16 ? pass.keys - panel * 16 : 16;
    for (const bool values : {false, true}) {
      const float* rows[16];
      for (std::int64_t j = 0; j < n; ++j) rows[j] = row(panel * 16 + j, values);
      t.products->pack_panel(rows, n, pass.hd, (values ? pass.value_rows : pass.key_rows) + panel * pair_panel(pass.hd));
    }
  }
  std::int64_t next = 0;
  pack_pair_columns_of(*t.products, pass.keys, pass.hd, [&] { return row(next++, false); }, pass.key_columns);
  return pass;
}

/// p and ds of query row `row`, from q k^T and dout v^T; 0 for keys it does not see, up to `keys`.
TROUPE_INLINE void pair_row_gradients(const PairGradPass& pass, std::int64_t row, std::int64_t head, std::int64_t keys,
                                      float* p, float* ds) {
  const AttentionGradTask& t = *pass.task;
  const AttentionGradSegment& s = *pass.segment;
  const float* out = s.out + row * t.strides.out + head * pass.hd;
  const float* dout = s.dout + row * t.strides.out + head * pass.hd;
  Vec dot = zero();
  for (std::int64_t d = 0; d < pass.hd; d += 16) dot = fma(load(out + d), load(dout + d), dot);
  const Vec delta = set(sum_lanes(dot)), lse = set(s.lse[row * t.shape.heads + head]), scale = set(t.shape.scale);
  const std::int64_t visible = pass.keys - s.rows + row + 1;
  for (std::int64_t i = 0; i < keys; i += 16) {
    const Mask m = first(visible - i > 0 ? visible - i : 0);
    const Vec probability = keep(m, exp(sub(mul(load(p + i), scale), lse)));
    store(ds + i, keep(m, mul(mul(probability, scale), sub(load(ds + i), delta))));
    store(p + i, probability);
  }
}

TROUPE_INLINE void pair_grad_block(const PairGradPass& pass, std::int64_t head, std::int64_t begin, std::int64_t rows) {
  const AttentionGradTask& t = *pass.task;
  const AttentionGradSegment& s = *pass.segment;
  const std::int64_t hd = pass.hd;
  const std::int64_t keys = pass.keys - s.rows + begin + rows, wide = (keys + 15) / 16 * 16;
  const float* q = s.q + begin * t.strides.q + head * hd;
  const float* dout = s.dout + begin * t.strides.out + head * hd;
  t.products->rows({q, rows, t.strides.q, hd, pass.key_rows, pair_panel(hd), wide, pass.p, pass.ld, pass.packed});
  t.products->rows({dout, rows, t.strides.out, hd, pass.value_rows, pair_panel(hd), wide, pass.ds, pass.ld, pass.packed});
  for (std::int64_t i = 0; i < rows; ++i)
    pair_row_gradients(pass, begin + i, head, keys, pass.p + i * pass.ld, pass.ds + i * pass.ld);
  t.products->rows({pass.ds, rows, pass.ld, keys, pass.key_columns, pair_panel(pass.keys), hd,
                    s.dq + begin * t.strides.dq + head * hd, t.strides.dq, pass.packed});
  std::int64_t next = 0;
  pack_pair_columns_of(*t.products, rows, hd, [&] { return q + next++ * t.strides.q; }, pass.query_columns);
  next = 0;
  pack_pair_columns_of(*t.products, rows, hd, [&] { return dout + next++ * t.strides.out; }, pass.dout_columns);
  t.products->gradient({pass.ds, pass.ld, rows, pass.query_columns, hd, 0, keys, pass.dk, true, pass.packed});
  t.products->gradient({pass.p, pass.ld, rows, pass.dout_columns, hd, 0, keys, pass.dv, true, pass.packed});
}

void pair_attention_grad_task(const AttentionGradTask& t) {
  const std::int64_t group = t.shape.heads / t.shape.kv_heads;
  for (std::int64_t i = 0; i < t.count; ++i) {
    const AttentionGradSegment& s = t.segments[i];
    if (s.rows == 0) continue;
    const PairGradPass pass = begin_pair_pass(t, s);
    for (std::int64_t g = 0; g < group; ++g)
      for (std::int64_t row = 0; row < s.rows; row += kPairGradRows)
        pair_grad_block(pass, t.kv_head * group + g, row, s.rows - row < kPairGradRows ? s.rows - row : kPairGradRows);
    const KeyGrad* parts[2] = {&s.prefix, &s.own};
    const float *dk = pass.dk, *dv = pass.dv;
    for (const KeyGrad* part : parts) {
      for (std::int64_t key = 0; key < part->count; ++key, dk += pass.hd, dv += pass.hd) {
        float* to_k = part->dk + key * t.strides.dkv + t.kv_head * pass.hd;
        float* to_v = part->dv + key * t.strides.dkv + t.kv_head * pass.hd;
        for (std::int64_t d = 0; d < pass.hd; d += 16) {
          store(to_k + d, add(load(to_k + d), load(dk + d)));
          store(to_v + d, add(load(to_v + d), load(dv + d)));
        }
      }
    }
  }
}
