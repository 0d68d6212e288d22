// Attention of few queries over pages of bfloat16: the products of leaf_attention_bf16.inl, in their order, without
// packing. Included inside the namespace of one instruction set.

/// Where panels of 16 keys and pairs of values begin.
struct PageLists {
  const float** panels;
  const float** values;
};

TROUPE_INLINE void list_pages(const PairAttentionTask& t, const PageLists& lists) {
  const std::int64_t hd = t.shape.head_dim;
  std::int64_t panel = 0, row = 0;
  for (std::int64_t i = 0; i < t.segment->span_count; ++i) {
    const KeySpan& span = t.segment->spans[i];
    for (std::int64_t key = 0; key < span.count; key += 16) lists.panels[panel++] = page_keys(span, t.kv_head, key, hd);
    for (std::int64_t key = 0; key < span.count; key += 2) lists.values[row++] = page_pair(span, t.kv_head, key, hd);
  }
}

/// scores[i][0..16 kPanels) of kRows queries, packed [head_dim][kRows]: blocks of 32 channels in order, each the chain
/// over its even channels plus the one over its odd ones.
template <int kRows, int kPanels>
void page_scores(const float* q, const float* const* panels, std::int64_t channels, float* scores, std::int64_t ld) {
  Vec sums[kRows][kPanels];
  fill(sums, zero());
  for (std::int64_t block = 0; block < channels; block += 32) {
    const std::int64_t end = channels - block < 32 ? channels : block + 32;
    Vec even[kRows][kPanels], odd[kRows][kPanels];
    fill(even, zero());
    fill(odd, zero());
    for (std::int64_t d = block; d < end; d += 2) {
#pragma GCC unroll 2
      for (int j = 0; j < kPanels; ++j) {
        const Vec pairs = load(panels[j] + d * 8), low = low_half(pairs), high = high_half(pairs);
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i) {
          even[i][j] = fma(set(q[d * kRows + i]), low, even[i][j]);
          odd[i][j] = fma(set(q[(d + 1) * kRows + i]), high, odd[i][j]);
        }
      }
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kPanels; ++j) sums[i][j] = add(sums[i][j], add(even[i][j], odd[i][j]));
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kPanels; ++j) store(scores + i * ld + 16 * j, sums[i][j]);
  }
}

/// out[i][0..16 kVectors) from a column on: blocks of 32 keys in order. p is rounded.
template <int kRows, int kVectors>
void page_values(const float* p, std::int64_t ld, const float* const* values, std::int64_t keys, std::int64_t column,
                 float* out, std::int64_t ldo) {
  alignas(64) float sums[kRows][kVectors][16] = {};
  for (std::int64_t block = 0; block < keys; block += 32) {
    const std::int64_t end = keys - block < 32 ? keys : block + 32;
    Vec even[kRows][kVectors], odd[kRows][kVectors];
    fill(even, zero());
    fill(odd, zero());
    std::int64_t key = block;
    for (; key + 1 < end; key += 2) {
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) {
        const Vec pairs = load(values[key / 2] + column + 16 * j), low = low_half(pairs), high = high_half(pairs);
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i) {
          even[i][j] = fma(set(p[i * ld + key]), low, even[i][j]);
          odd[i][j] = fma(set(p[i * ld + key + 1]), high, odd[i][j]);
        }
      }
    }
    if (key < end) {
      for (int j = 0; j < kVectors; ++j) {
        const Vec low = low_half(load(values[key / 2] + column + 16 * j));
        for (int i = 0; i < kRows; ++i) even[i][j] = fma(set(p[i * ld + key]), low, even[i][j]);
      }
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) store(sums[i][j], add(load(sums[i][j]), add(even[i][j], odd[i][j])));
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) store(out + i * ldo + column + 16 * j, load(sums[i][j]));
}

/// kRows pairs from `pair` on. Their scores and results: [kRows][ld] and [kRows][head_dim].
template <int kRows>
void page_rows(const PairAttentionTask& t, const PageLists& lists, std::int64_t pair, float* memory) {
  const AttentionSegment& s = *t.segment;
  const std::int64_t hd = t.shape.head_dim, group = t.shape.heads / t.shape.kv_heads, ld = padded_keys(t.keys);
  const auto visible = [&](std::int64_t i) { return t.keys - s.rows + (pair + i) / group + 1; };
  const auto head = [&](std::int64_t i) { return t.kv_head * group + (pair + i) % group; };
  float* packed = memory;
  float* out = packed + kPairRows * hd;
  float* scores = out + kPairRows * hd;
  transpose_rows([&](int i) { return s.q + (pair + i) / group * t.q_stride + head(i) * hd; }, kRows, hd, packed, kRows);
  for (std::int64_t i = 0; i < kRows * hd; i += 16) store(packed + i, rounded(load(packed + i)));
  const std::int64_t keys = visible(kRows - 1);
  {
    const Flushing flushing;
    std::int64_t key = 0;
    if constexpr (kPairVectors == 2) {
      for (; key + 16 < keys; key += 32) page_scores<kRows, 2>(packed, lists.panels + key / 16, hd, scores + key, ld);
    }
    for (; key < keys; key += 16) page_scores<kRows, 1>(packed, lists.panels + key / 16, hd, scores + key, ld);
  }
  float inverse[kRows], lse[kRows];
  for (std::int64_t i = 0; i < kRows; ++i) {
    float* row = scores + i * ld;
    scale_floats(row, visible(i), set(t.shape.scale));
    lse[i] = softmax_row(row, visible(i), &inverse[i]);
    for (std::int64_t key = 0; key < visible(i); key += 16) store(row + key, rounded(load(row + key)));
    clear_floats(row, (visible(i) + 15) / 16 * 16, keys);
  }
  {
    const Flushing flushing;
    std::int64_t column = 0;
    if constexpr (kPairVectors == 2) {
      for (; column + 16 < hd; column += 32) page_values<kRows, 2>(scores, ld, lists.values, keys, column, out, hd);
    }
    for (; column < hd; column += 16) page_values<kRows, 1>(scores, ld, lists.values, keys, column, out, hd);
  }
  for (std::int64_t i = 0; i < kRows; ++i) {
    const std::int64_t row = (pair + i) / group;
    float* target = s.out + row * t.out_stride + head(i) * hd;
    for (std::int64_t d = 0; d < hd; d += 16) store(target + d, mul(load(out + i * hd + d), set(inverse[i])));
    if (s.lse != nullptr) s.lse[row * t.shape.heads + head(i)] = lse[i];
  }
}

template <int kRows>
TROUPE_INLINE void page_rows_of(const PairAttentionTask& t, const PageLists& lists, std::int64_t pair,
                                std::int64_t rows, float* memory) {
  if (rows == kRows) return page_rows<kRows>(t, lists, pair, memory);
  if constexpr (kRows > 1) page_rows_of<kRows - 1>(t, lists, pair, rows, memory);
}

/// All of a small task's rows, if its keys lie so that nothing must be packed.
TROUPE_INLINE bool attend_in_pages(const PairAttentionTask& t) {
  const std::int64_t group = t.shape.heads / t.shape.kv_heads, end = t.row_end * group;
  if (end - t.row_begin * group > kPairDecodeRows || !in_whole_panels(*t.segment)) return false;
  auto** pointers = reinterpret_cast<const float**>(t.scratch);
  const PageLists lists{pointers, pointers + padded_keys(t.keys)};
  list_pages(t, lists);
  float* memory = t.scratch + 4 * padded_keys(t.keys);
  for (std::int64_t pair = t.row_begin * group; pair < end; pair += kPairRows)
    page_rows_of<kPairRows>(t, lists, pair, end - pair < kPairRows ? end - pair : kPairRows, memory);
  return true;
}
