// Rows side by side become columns side by side: the form in which tiles read them. Included inside the namespace of
// one instruction set.

/// target[c][i] = row(i)[c] for c < k and i < rows, `width` floats from one c to the next (rows <= width <= 16); the
/// columns from `rows` on are 0.
template <class Row>
TROUPE_INLINE void transpose_rows(const Row& row, std::int64_t rows, std::int64_t k, float* target,
                                  std::int64_t width) {
  const Mask kept = first(width);
  for (std::int64_t begin = 0; begin < k; begin += 16) {
    const Mask m = first(k - begin);
    Vec v[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = i < rows ? load(row(i) + begin, m) : zero();
    transpose(v);
    float* to = target + begin * width;
#pragma GCC unroll 16
    for (int c = 0; c < 16; ++c) {
      if (begin + c < k) store(to + c * width, v[c], kept);
    }
  }
}

void pack_panel(const float* const* rows, std::int64_t count, std::int64_t k, float* panel) {
  transpose_rows([rows](int i) { return rows[i]; }, count, k, panel, 16);
}

void pack_columns(const float* const* rows, std::int64_t count, std::int64_t column, std::int64_t cols, float* to) {
  const Mask m = first(cols);
  for (std::int64_t i = 0; i < count; ++i) store(to + 16 * i, load(rows[i] + column, m));
}
