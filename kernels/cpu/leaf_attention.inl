// Scores, softmax and weighted values for tiles of (query, head) pairs. Included inside the namespace of one
// instruction set. All pairs of a tile belong to one kv head, so a pass over the keys serves them all.

/// Collects neighbouring panels of 16 keys until a tile of scores is wide enough, across the borders of spans.
struct ScoreTile {
  const float* a;  ///< Packed queries, [head_dim][rows].
  std::int64_t rows, head_dim;
  float* scores;  ///< [rows][ld]
  std::int64_t ld;
  const float* panels[kWideTileVectors];
  std::int64_t pending = 0;
  std::int64_t offset = 0;  ///< Key index of the first pending panel.
};

TROUPE_INLINE void flush(ScoreTile& tile) {
  const float* const* panel = tile.panels;
  while (tile.pending > 0) {
    const std::int64_t width = tile_width(tile.rows, tile.pending);
    const std::int64_t bounds[] = {0, tile.head_dim};
    pick_tile<Order::kChain>(tile.rows,
                             width)({tile.a, panel, bounds, tile.scores + tile.offset, tile.ld, 16 * width, nullptr});
    panel += width;
    tile.offset += 16 * width;
    tile.pending -= width;
  }
}

TROUPE_INLINE void push(ScoreTile& tile, const float* panel, std::int64_t key) {
  if (tile.pending == kWideTileVectors || (tile.pending > 0 && tile.offset + 16 * tile.pending != key)) flush(tile);
  if (tile.pending == 0) tile.offset = key;
  tile.panels[tile.pending++] = panel;
}

/// scores[i][t] for every key t < keys. The last panel of a span may write up to 15 scores of no key behind its own;
/// the next span overwrites them, and nobody reads those behind the last.
TROUPE_INLINE void score_keys(ScoreTile& tile, const SpanView* spans, std::int64_t kv_head, std::int64_t keys) {
  for (std::int64_t key = 0; key < keys; ++spans) {
    const std::int64_t count = spans->count < keys - key ? spans->count : keys - key;
    const float* panel = spans->k + kv_head * spans->k_head;
    for (std::int64_t t = 0; t < count; t += 16, panel += 16 * tile.head_dim) push(tile, panel, key + t);
    if (count % 16 != 0) flush(tile);  // its surplus scores must be there before the next span's first
    key += count;
  }
  flush(tile);
}

/// scores[0..visible) -> exp(score - maximum), zeros up to the next multiple of 16. Returns log sum exp; *inverse = 1 /
/// sum.
TROUPE_INLINE float softmax_row(float* scores, std::int64_t visible, float* inverse) {
  const Vec lowest = set(-__builtin_inff());
  Sums best = {{lowest, lowest, lowest, lowest}};
  for_vectors(
      visible, [&](std::int64_t i, Mask m, int which) __attribute__((always_inline)) {
        best.part[which] = max(select(m, load(scores + i, m), lowest), best.part[which]);
      });
  const float maximum = max_lane(max(max(best.part[0], best.part[1]), max(best.part[2], best.part[3])));
  const Vec top = set(maximum);
  Sums sums = no_sums();
  for_vectors(
      visible, [&](std::int64_t i, Mask m, int which) __attribute__((always_inline)) {
        const Vec e = keep(m, exp(sub(load(scores + i, m), top)));
        store(scores + i, e);
        sums.part[which] = add(sums.part[which], e);
      });
  const float sum = total(sums);
  *inverse = 1.0f / sum;
  return maximum + (sum == sum ? lane0(log(set(sum))) : sum);
}

/// Queries of a tile, transposed and scaled: packed[d][i].
template <class Row>
TROUPE_INLINE void pack_scaled(const Row& row, std::int64_t rows, std::int64_t head_dim, float scale, float* packed) {
  transpose_rows(row, rows, head_dim, packed, rows);
  const Vec factor = set(scale);
  for (std::int64_t i = 0; i < rows * head_dim; i += 16) store(packed + i, mul(load(packed + i), factor));
}

/// The value rows of a segment's spans for one kv head, as runs.
inline constexpr std::int64_t kRunsAtOnce = 64;

/// out[i] = sum over keys [0, visible[i]) of p[i][key] v[key]. visible does not fall with i.
TROUPE_INLINE void combine_values(const AttentionTask& t, std::int64_t rows, const float* p, std::int64_t ld,
                                  const std::int64_t* visible, float* out) {
  RowRun runs[kRunsAtOnce];
  const std::int64_t hd = t.shape.head_dim;
  std::int64_t span = 0;
  for (std::int64_t key = 0; key < visible[rows - 1];) {  // blocks of spans; sums are put down and taken up unchanged
    std::int64_t used = 0;
    std::int64_t block = 0;
    for (; used < kRunsAtOnce && span < t.span_count; ++used, ++span) {
      const SpanView& s = t.spans[span];
      runs[used] = {s.v + t.kv_head * s.v_head, s.v_row, s.count};
      block += s.count;
    }
    const std::int64_t common = (visible[0] < key + block ? visible[0] : key + block) - key;
    combine(rows, p + key, ld, 1, runs, 0, common > 0 ? common : 0, hd, out, hd, key > 0);
    for (std::int64_t i = 1; i < rows; ++i) {
      const std::int64_t end = (visible[i] < key + block ? visible[i] : key + block) - key;
      const std::int64_t begin = common > 0 ? common : 0;
      if (end > begin) combine(1, p + i * ld + key, ld, 1, runs, begin, end, hd, out + i * hd, hd, true);
    }
    key += block;
  }
}

/// The tile of pairs [pair, pair + rows): pair = query * group + head of the group.
void attention_tile(const AttentionTask& t, std::int64_t pair, std::int64_t rows) {
  const AttentionSegment& s = *t.segment;
  const std::int64_t hd = t.shape.head_dim;
  const std::int64_t group = t.shape.heads / t.shape.kv_heads;
  const std::int64_t ld = padded_keys(t.keys);
  float* packed = t.scratch;
  float* out = packed + kAttentionTileRows * hd;
  float* scores = out + kAttentionTileRows * hd;
  std::int64_t visible[kAttentionTileRows];
  const float* query[kAttentionTileRows];
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = (pair + i) / group;
    const std::int64_t head = t.kv_head * group + (pair + i) % group;
    visible[i] = t.keys - s.rows + row + 1;
    query[i] = s.q + row * t.q_stride + head * hd;
  }
  pack_scaled([&query](int i) { return query[i]; }, rows, hd, t.shape.scale, packed);
  ScoreTile tile{packed, rows, hd, scores, ld, {}};
  score_keys(tile, t.spans, t.kv_head, visible[rows - 1]);
  float inverse[kAttentionTileRows];
  float lse[kAttentionTileRows];
  for (std::int64_t i = 0; i < rows; ++i) lse[i] = softmax_row(scores + i * ld, visible[i], &inverse[i]);
  combine_values(t, rows, scores, ld, visible, out);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = (pair + i) / group;
    const std::int64_t head = t.kv_head * group + (pair + i) % group;
    float* target = s.out + row * t.out_stride + head * hd;
    for (std::int64_t d = 0; d < hd; d += 16) store(target + d, mul(load(out + i * hd + d), set(inverse[i])));
    if (s.lse != nullptr) s.lse[row * t.shape.heads + head] = lse[i];
  }
}

void attention_task(const AttentionTask& t) {
  const std::int64_t group = t.shape.heads / t.shape.kv_heads;
  const std::int64_t end = t.row_end * group;
  for (std::int64_t pair = t.row_begin * group; pair < end; pair += kAttentionTileRows) {
    attention_tile(t, pair, end - pair < kAttentionTileRows ? end - pair : kAttentionTileRows);
  }
}
