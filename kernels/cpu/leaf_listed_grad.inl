// Backward pass of attention over listed rows. Included inside the namespace of one instruction set.
//
// A block of query rows with all heads of a kv head; pair = row * group + head. Its keys and values are packed once; then
// some pairs at a time: p = softmax(scale q k^T, sink), dp = dout v^T, delta = p . dp, ds = scale p (dp - delta);
// dq = ds k, dk += ds^T q, dv += p^T dout, dsink -= p_sink delta.

/// The block's matrices, in the task's scratch. Channels are filled up to a vector with zeros.
struct ListedGradPass {
  const ListedGradBlock* block;
  std::int64_t group, kp, vp, ld;
  float *key_panels, *value_panels;  ///< [keys/16][dim][16]
  float* keys;                       ///< [keys][kp]
  float *q, *dout;                   ///< [pairs][kp], [pairs][vp]
  float *p, *ds;                     ///< [kListedGradPairs][ld]
  float* dq;                         ///< [kListedGradPairs][kp]
  float* packed;                     ///< [dim][6]
  float* rows;                       ///< [6][kp or vp]
};

TROUPE_INLINE ListedGradPass place_listed_grad(const ListedGradBlock& b) {
  const ListedShape& s = *b.shape;
  ListedGradPass pass{};
  pass.block = &b;
  pass.group = s.heads / s.kv_heads;
  pass.kp = (s.key_dim + 15) / 16 * 16;
  pass.vp = (s.value_dim + 15) / 16 * 16;
  pass.ld = padded_keys(b.count);
  const std::int64_t panels = (b.count + 15) / 16 * 16, widest = pass.kp > pass.vp ? pass.kp : pass.vp;
  float* at = b.scratch;
  const auto take = [&at](std::int64_t floats) {
    float* const here = at;
    at += (floats + 15) / 16 * 16;
    return here;
  };
  pass.key_panels = take(panels * s.key_dim);
  pass.value_panels = take(panels * s.value_dim);
  pass.keys = take(b.count * pass.kp);
  pass.q = take(b.rows * pass.group * pass.kp);
  pass.dout = take(b.rows * pass.group * pass.vp);
  pass.p = take(kListedGradPairs * pass.ld);
  pass.ds = take(kListedGradPairs * pass.ld);
  pass.dq = take(kListedGradPairs * pass.kp);
  pass.packed = take(kAttentionTileRows * widest + kLanes);
  pass.rows = take(kAttentionTileRows * widest);
  return pass;
}

/// n floats, filled up with zeros to a vector.
TROUPE_INLINE void copy_padded(const float* from, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; i += 16) store(to + i, load(from + i, first(n - i)));
}

TROUPE_INLINE void pack_listed(const ListedGradPass& pass) {
  const ListedGradBlock& b = *pass.block;
  const ListedShape& s = *b.shape;
  const std::int64_t key = b.kv_head * s.key_dim, value = s.value_offset + b.kv_head * s.value_dim;
  for (std::int64_t begin = 0; begin < b.count; begin += 16) {
    const std::int64_t n = b.count - begin < 16 ? b.count - begin : 16;
    const ListedRow* rows = b.keys + begin;
    transpose_rows([rows, key](int i) { return rows[i].row + key; }, n, s.key_dim, pass.key_panels + begin * s.key_dim, 16);
    transpose_rows([rows, value](int i) { return rows[i].row + value; }, n, s.value_dim,
                   pass.value_panels + begin * s.value_dim, 16);
    for (std::int64_t i = begin; i < begin + n; ++i) copy_padded(b.keys[i].row + key, s.key_dim, pass.keys + i * pass.kp);
  }
  for (std::int64_t pair = 0; pair < b.rows * pass.group; ++pair) {
    const std::int64_t head = pair / pass.group * s.heads + b.kv_head * pass.group + pair % pass.group;
    copy_padded(b.q + head * s.key_dim, s.key_dim, pass.q + pair * pass.kp);
    copy_padded(b.dout + head * s.value_dim, s.value_dim, pass.dout + pair * pass.vp);
  }
}

/// Calls body(first, count) for blocks of `keys` keys that stay in the second-level cache while all pairs pass.
template <class Body>
TROUPE_INLINE void for_key_blocks(std::int64_t keys, const Body& body) {
  constexpr std::int64_t kBlock = 256;
  for (std::int64_t begin = 0; begin < keys; begin += kBlock) body(begin, keys - begin < kBlock ? keys - begin : kBlock);
}

/// Rows [0, pairs) of a, times the panels of `keys` keys.
TROUPE_INLINE void listed_products(const ListedGradPass& pass, const float* a, std::int64_t stride, std::int64_t pairs,
                                   std::int64_t dim, float scale, const float* panels, std::int64_t keys, float* to) {
  const SpanView span{panels, nullptr, 0, 0, 0, keys};
  for (std::int64_t i = 0; i < pairs; i += kAttentionTileRows) {
    const std::int64_t n = pairs - i < kAttentionTileRows ? pairs - i : kAttentionTileRows;
    const float* rows = a + i * stride;
    pack_scaled([rows, stride](int j) { return rows + j * stride; }, n, dim, scale, pass.packed);
    ScoreTile tile{pass.packed, n, dim, to + i * pass.ld, pass.ld, {}};
    score_keys(tile, &span, 0, keys);
  }
}

/// One pair that sees keys [low, high) of `keys`: scores become p, dp becomes ds; elsewhere both become 0.
TROUPE_INLINE void listed_slopes(float scale, const float* sink, std::int64_t low, std::int64_t high, std::int64_t keys,
                                 float* p, float* ds, float* dsink) {
  const Vec lowest = set(-__builtin_inff());
  const auto seen = [&](std::int64_t i) __attribute__((always_inline)) {
    return select(first(low - i > 0 ? low - i : 0), lowest, select(first(high - i > 0 ? high - i : 0), load(p + i), lowest));
  };
  Vec best = sink == nullptr ? lowest : set(*sink);
  for (std::int64_t i = 0; i < keys; i += 16) best = max(seen(i), best);
  const Vec top = set(max_lane(best));
  Vec sum = zero();
  for (std::int64_t i = 0; i < keys; i += 16) {
    const Vec e = exp(sub(seen(i), top));
    store(p + i, e);
    sum = add(sum, e);
  }
  const float of_sink = sink == nullptr ? 0 : lane0(exp(sub(set(*sink), top)));
  const float inverse = 1 / (sum_lanes(sum) + of_sink);
  Vec dot = zero();
  for (std::int64_t i = 0; i < keys; i += 16) {
    const Vec probability = mul(load(p + i), set(inverse));
    store(p + i, probability);
    dot = fma(probability, load(ds + i), dot);
  }
  const float delta = sum_lanes(dot);
  for (std::int64_t i = 0; i < keys; i += 16)
    store(ds + i, mul(mul(load(p + i), set(scale)), sub(load(ds + i), set(delta))));
  if (sink != nullptr) *dsink -= of_sink * inverse * delta;
}

/// Adds weights^T source to the gradients of `keys` listed rows, `offset` floats into each.
TROUPE_INLINE void add_to_listed(const ListedGradPass& pass, const ListedRow* rows, std::int64_t keys, const float* weights,
                                 const float* source, std::int64_t width, std::int64_t pairs, std::int64_t offset,
                                 std::int64_t dim) {
  const RowRun run{source, width, pairs};
  for (std::int64_t key = 0; key < keys; key += kAttentionTileRows) {
    const std::int64_t n = keys - key < kAttentionTileRows ? keys - key : kAttentionTileRows;
    combine(n, weights + key, 1, pass.ld, &run, 0, pairs, width, pass.rows, width, false);
    for (std::int64_t i = 0; i < n; ++i) {
      float* to = rows[key + i].gradient + offset;
      for (std::int64_t d = 0; d < dim; d += 16) {
        const Mask m = first(dim - d);
        store(to + d, add(load(to + d, m), load(pass.rows + i * width + d)), m);
      }
    }
  }
}

/// Pairs [begin, begin + pairs) of the block.
TROUPE_INLINE void listed_pairs(const ListedGradPass& pass, std::int64_t begin, std::int64_t pairs) {
  const ListedGradBlock& b = *pass.block;
  const ListedShape& s = *b.shape;
  const auto end_of = [&](std::int64_t pair) { return b.first_end + pair / pass.group; };
  const auto begin_of = [&](std::int64_t pair) {
    return b.window > 0 && end_of(pair) > b.window ? end_of(pair) - b.window : 0;
  };
  const std::int64_t low = begin_of(begin) / 16 * 16, keys = end_of(begin + pairs - 1) - low;
  const float *q = pass.q + begin * pass.kp, *dout = pass.dout + begin * pass.vp;
  for_key_blocks(keys, [&](std::int64_t key, std::int64_t n) {
    listed_products(pass, q, pass.kp, pairs, s.key_dim, s.scale, pass.key_panels + (low + key) * s.key_dim, n, pass.p + key);
  });
  for_key_blocks(keys, [&](std::int64_t key, std::int64_t n) {
    listed_products(pass, dout, pass.vp, pairs, s.value_dim, 1, pass.value_panels + (low + key) * s.value_dim, n, pass.ds + key);
  });
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t head = b.kv_head * pass.group + (begin + i) % pass.group;
    listed_slopes(s.scale, s.sinks == nullptr ? nullptr : s.sinks + head, begin_of(begin + i) - low, end_of(begin + i) - low,
                  keys, pass.p + i * pass.ld, pass.ds + i * pass.ld, b.dsinks + head);
  }
  for_key_blocks(keys, [&](std::int64_t key, std::int64_t n) {
    const RowRun run{pass.keys + (low + key) * pass.kp, pass.kp, n};
    for (std::int64_t i = 0; i < pairs; i += kAttentionTileRows)
      combine(pairs - i < kAttentionTileRows ? pairs - i : kAttentionTileRows, pass.ds + i * pass.ld + key, pass.ld, 1, &run,
              0, n, pass.kp, pass.dq + i * pass.kp, pass.kp, key > 0);
  });
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t pair = begin + i;
    float* to = b.dq + (pair / pass.group * s.heads + b.kv_head * pass.group + pair % pass.group) * s.key_dim;
    for (std::int64_t d = 0; d < s.key_dim; d += 16) store(to + d, load(pass.dq + i * pass.kp + d), first(s.key_dim - d));
  }
  add_to_listed(pass, b.keys + low, keys, pass.ds, q, pass.kp, pairs, b.kv_head * s.key_dim, s.key_dim);
  add_to_listed(pass, b.keys + low, keys, pass.p, dout, pass.vp, pairs, s.value_offset + b.kv_head * s.value_dim, s.value_dim);
}

void listed_gradient(const ListedGradBlock& b) {
  const ListedGradPass pass = place_listed_grad(b);
  pack_listed(pass);
  const std::int64_t all = b.rows * pass.group;
  for (std::int64_t begin = 0; begin < all; begin += kListedGradPairs)
    listed_pairs(pass, begin, all - begin < kListedGradPairs ? all - begin : kListedGradPairs);
}
