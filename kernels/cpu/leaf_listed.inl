// Attention over listed rows: one query row, all heads of a kv head in one pass over its list. Included inside the
// namespace of one instruction set.

inline constexpr int kListedTile = kTileVectors > 1 ? 4 : 2;  ///< Heads, and keys, of a tile of scores.

/// scores[i][j] = q[i] . k[j]: 16 lanes by channel, then their tree.
TROUPE_INLINE void listed_tile(const float* const* q, const float* const* k, std::int64_t channels,
                               float (&scores)[kListedTile][kListedTile]) {
  Vec sums[kListedTile][kListedTile];
  fill(sums, zero());
  const auto step = [&](std::int64_t i, Mask m, bool whole) __attribute__((always_inline)) {
    Vec x[kListedTile];
#pragma GCC unroll 4
    for (int a = 0; a < kListedTile; ++a) x[a] = whole ? load(q[a] + i) : load(q[a] + i, m);
#pragma GCC unroll 4
    for (int b = 0; b < kListedTile; ++b) {
      const Vec y = whole ? load(k[b] + i) : load(k[b] + i, m);
#pragma GCC unroll 4
      for (int a = 0; a < kListedTile; ++a) sums[a][b] = fma(x[a], y, sums[a][b]);
    }
  };
  std::int64_t i = 0;
  for (; i + 16 <= channels; i += 16) step(i, first(16), true);
  if (i < channels) step(i, first(channels - i), false);
  for (int a = 0; a < kListedTile; ++a)
    for (int b = 0; b < kListedTile; ++b) scores[a][b] = sum_lanes(sums[a][b]);
}

/// p[head][key] of a block of keys that stays in cache while the heads pass.
TROUPE_INLINE void listed_scores(const ListedTask& t, std::int64_t kv_head, std::int64_t begin, std::int64_t keys,
                                 const RowRun* runs, float* p, std::int64_t ld) {
  const ListedShape& s = *t.shape;
  const std::int64_t group = s.heads / s.kv_heads;
  const float* rows[kListedKeys + kListedTile];
  for (std::int64_t j = 0; j < keys; ++runs)
    for (std::int64_t i = 0; i < runs->count; ++i) rows[j++] = runs->rows + i * runs->stride + kv_head * s.key_dim;
  for (int i = 0; i < kListedTile; ++i) rows[keys + i] = rows[keys - 1];
  float scores[kListedTile][kListedTile];
  for (std::int64_t head = 0; head < group; head += kListedTile) {
    const float* q[kListedTile];
    const std::int64_t heads = group - head < kListedTile ? group - head : kListedTile;
    for (std::int64_t i = 0; i < kListedTile; ++i)
      q[i] = t.q + (kv_head * group + head + (i < heads ? i : heads - 1)) * s.key_dim;
    for (std::int64_t j = 0; j < keys; j += kListedTile) {
      listed_tile(q, rows + j, s.key_dim, scores);
      const std::int64_t n = keys - j < kListedTile ? keys - j : kListedTile;
      for (std::int64_t a = 0; a < heads; ++a)
        for (std::int64_t b = 0; b < n; ++b) p[(head + a) * ld + begin + j + b] = scores[a][b] * s.scale;
    }
  }
}

/// out[head] += p[head][.] values of a block of keys; out: [group][padded value_dim], one chain over all keys.
TROUPE_INLINE void listed_values(const ListedTask& t, std::int64_t kv_head, std::int64_t begin, std::int64_t keys,
                                 const RowRun* runs, const float* p, std::int64_t ld, float* out, std::int64_t ldo) {
  const ListedShape& s = *t.shape;
  const std::int64_t group = s.heads / s.kv_heads, whole = s.value_dim / 16 * 16;
  RowRun values[kListedKeys];
  std::int64_t count = 0;
  for (std::int64_t j = 0; j < keys; j += runs[count].count, ++count)
    values[count] = {runs[count].rows + s.value_offset + kv_head * s.value_dim, runs[count].stride, runs[count].count};
  for (std::int64_t head = 0; whole > 0 && head < group; head += kAttentionTileRows)
    combine(group - head < kAttentionTileRows ? group - head : kAttentionTileRows, p + head * ld + begin, ld, 1, values,
            0, keys, whole, out + head * ldo, ldo, begin > 0);
  if (whole == s.value_dim) return;
  const Mask m = first(s.value_dim - whole);
  for (std::int64_t head = 0; head < group; ++head) {
    float* to = out + head * ldo + whole;
    const float* weight = p + head * ld + begin;
    Vec sum = begin > 0 ? load(to) : zero();
    for (std::int64_t run = 0; run < count; ++run)
      for (std::int64_t i = 0; i < values[run].count; ++i)
        sum = fma(set(*weight++), load(values[run].rows + i * values[run].stride + whole, m), sum);
    store(to, sum);
  }
}

void listed_row(const ListedTask& t) {
  const ListedShape& s = *t.shape;
  const std::int64_t group = s.heads / s.kv_heads, ld = padded_keys(t.keys + 1);
  const std::int64_t ldo = (s.value_dim + 15) / 16 * 16;
  float* p = t.scratch;
  float* out = p + group * ld;
  const auto blocks = [&](const auto& body) {
    for (std::int64_t begin = 0, block = 0; begin < t.keys; begin += kListedKeys, ++block)
      body(begin, t.keys - begin < kListedKeys ? t.keys - begin : kListedKeys, t.runs + t.first_run[block]);
  };
  for (std::int64_t kv_head = 0; kv_head < s.kv_heads; ++kv_head) {
    blocks([&](std::int64_t begin, std::int64_t keys, const RowRun* runs) {
      listed_scores(t, kv_head, begin, keys, runs, p, ld);
    });
    for (std::int64_t head = 0; head < group; ++head) {  // a sink is the last term of the sum
      float* row = p + head * ld;
      if (s.sinks != nullptr) row[t.keys] = s.sinks[kv_head * group + head];
      (void)softmax_row(row, t.keys + (s.sinks != nullptr ? 1 : 0), &t.inverse[head]);
    }
    blocks([&](std::int64_t begin, std::int64_t keys, const RowRun* runs) {
      listed_values(t, kv_head, begin, keys, runs, p, ld, out, ldo);
    });
    for (std::int64_t head = 0; head < group; ++head) {
      float* to = t.out + (kv_head * group + head) * s.value_dim;
      for (std::int64_t d = 0; d < s.value_dim; d += 16)
        store(to + d, mul(load(out + head * ldo + d), set(t.inverse[head])), first(s.value_dim - d));
    }
  }
}
