// Row-wise kernels: normalisation, rotation, gated unit. Included inside the namespace of one instruction set.

TROUPE_INLINE void normalise(const float* x, const float* weight, float* y, std::int64_t cols, float eps,
                             float* inv_rms) {
  Sums squares = no_sums();
  for_vectors(
      cols, [&](std::int64_t i, Mask m, int which) __attribute__((always_inline)) {
        const Vec v = load(x + i, m);
        squares.part[which] = fma(v, v, squares.part[which]);
      });
  const Vec mean = div(set(total(squares)), set(static_cast<float>(cols)));
  const Vec s = div(set(1.0f), sqrt(add(mean, set(eps))));
  for_vectors(
      cols, [&](std::int64_t i, Mask m, int)
                __attribute__((always_inline)) { store(y + i, mul(mul(load(x + i, m), s), load(weight + i, m)), m); });
  if (inv_rms != nullptr) *inv_rms = lane0(s);
}

void rmsnorm_forward_rows(const RmsNormForward& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t head = 0; head < a.heads; ++head) {
      float* inv_rms = a.inv_rms == nullptr ? nullptr : a.inv_rms + row * a.heads + head;
      normalise(a.x + row * a.x_stride + head * a.cols, a.weight, a.y + row * a.y_stride + head * a.cols, a.cols, a.eps,
                inv_rms);
    }
  }
}

void rmsnorm_dx_rows(const RmsNormBackward& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t head = 0; head < a.heads; ++head) {
      const float* x = a.x + row * a.x_stride + head * a.cols;
      const float* dy = a.dy + row * a.dy_stride + head * a.cols;
      float* dx = a.dx + row * a.dx_stride + head * a.cols;
      const Vec s = set(a.inv_rms[row * a.heads + head]);
      Sums dots = no_sums();
      for_vectors(
          a.cols, [&](std::int64_t i, Mask m, int which) __attribute__((always_inline)) {
            dots.part[which] = fma(mul(load(a.weight + i, m), load(dy + i, m)), load(x + i, m), dots.part[which]);
          });
      const Vec mean = div(set(total(dots)), set(static_cast<float>(a.cols)));
      const Vec pull = mul(mul(mul(s, s), s), mean);
      for_vectors(
          a.cols, [&](std::int64_t i, Mask m, int) __attribute__((always_inline)) {
            const Vec push = mul(mul(load(a.weight + i, m), load(dy + i, m)), s);
            store(dx + i, fnma(load(x + i, m), pull, push), m);
          });
    }
  }
}

void rmsnorm_dweight_cols(const RmsNormBackward& a, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kBlock = 64;  // vectors summed in one chain before they join the total: error grows slower
  constexpr int kWidth = 4;            // chains side by side, and whole lines of a row at a time
  for (std::int64_t col = begin; col < end; col += 16 * kWidth) {
    Mask m[kWidth];
    Vec sum[kWidth];
    Vec block[kWidth];
    for (int j = 0; j < kWidth; ++j) {
      m[j] = first(end - col > 16 * j ? end - col - 16 * j : 0);
      sum[j] = block[j] = zero();
    }
    std::int64_t in_block = 0;
    for (std::int64_t row = 0; row < a.rows; ++row) {
      for (std::int64_t head = 0; head < a.heads; ++head) {
        const float* x = a.x + row * a.x_stride + head * a.cols + col;
        const float* dy = a.dy + row * a.dy_stride + head * a.cols + col;
        const Vec s = set(a.inv_rms[row * a.heads + head]);
#pragma GCC unroll 4
        for (int j = 0; j < kWidth; ++j)
          block[j] = fma(mul(load(dy + 16 * j, m[j]), s), load(x + 16 * j, m[j]), block[j]);
        if (++in_block < kBlock) continue;
        in_block = 0;
#pragma GCC unroll 4
        for (int j = 0; j < kWidth; ++j) {
          sum[j] = add(sum[j], block[j]);
          block[j] = zero();
        }
      }
    }
    for (int j = 0; j < kWidth; ++j) store(a.dweight + col + 16 * j, add(sum[j], block[j]), m[j]);
  }
}

void rope_rows(const Rope& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t half = a.rotary / 2;
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t head = 0; head < a.heads; ++head) {
      float* x = a.x + row * a.stride + head * a.head_dim;
      for (std::int64_t i = 0; i < half; i += 16) {
        const Mask m = first(half - i);
        const Vec c = load(a.cos + row * half + i, m);
        Vec s = load(a.sin + row * half + i, m);
        if (a.inverse) s = sub(zero(), s);
        const Vec p = load(x + i, m);
        const Vec q = load(x + half + i, m);
        store(x + i, fnma(q, s, mul(p, c)), m);
        store(x + half + i, fma(p, s, mul(q, c)), m);
      }
    }
  }
}

void swiglu_forward_rows(const SwigluForward& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* gate = a.gate + row * a.in_stride;
    const float* up = a.up + row * a.in_stride;
    float* y = a.y + row * a.y_stride;
    for (std::int64_t i = 0; i < a.cols; i += 16) {
      const Mask m = first(a.cols - i);
      const Vec g = load(gate + i, m);
      store(y + i, mul(mul(g, sigmoid(g)), load(up + i, m)), m);
    }
  }
}

void swiglu_backward_rows(const SwigluBackward& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* gate = a.gate + row * a.in_stride;
    const float* up = a.up + row * a.in_stride;
    const float* dy = a.dy + row * a.dy_stride;
    for (std::int64_t i = 0; i < a.cols; i += 16) {
      const Mask m = first(a.cols - i);
      const Vec g = load(gate + i, m);
      const Vec u = load(up + i, m);
      const Vec d = load(dy + i, m);
      const Vec s = sigmoid(g);
      const Vec slope = mul(s, fma(g, sub(set(1.0f), s), set(1.0f)));
      store(a.dup + row * a.out_stride + i, mul(d, mul(g, s)), m);
      store(a.dgate + row * a.out_stride + i, mul(mul(d, u), slope), m);
    }
  }
}
