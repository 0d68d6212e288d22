// The causal convolution and its gradient, a lane per channel. Included inside the namespace of one instruction set.
// Threads own channels: every sum over rows belongs to one of them.

inline constexpr int kUsualTaps = 4;  ///< Known to the compiler, loops over taps become shuffles and registers.

/// weight[c][j] of `count` channels as taps side by side: to[j][c].
TROUPE_INLINE void turn_taps(const float* __restrict weight, std::int64_t taps, std::int64_t count, float* __restrict to) {
  if (taps == kUsualTaps) {
    for (std::int64_t c = 0; c < count; ++c)
      for (std::int64_t j = 0; j < kUsualTaps; ++j) to[j * kConvChannels + c] = weight[c * kUsualTaps + j];
    return;
  }
  for (std::int64_t c = 0; c < count; ++c)
    for (std::int64_t j = 0; j < taps; ++j) to[j * kConvChannels + c] = weight[c * taps + j];
}

/// What tap j of row t reads, from channel `first_channel` on; null: zeros that nothing adds.
TROUPE_INLINE void conv_sources(const CausalConv& a, std::int64_t t, std::int64_t first_channel, const float** source) {
  for (std::int64_t j = 0; j < a.taps; ++j) {
    const std::int64_t row = t - a.taps + 1 + j;
    const float* x = row < 0 ? a.history : a.x;
    source[j] = x == nullptr ? nullptr : x + (row < 0 ? row + a.taps - 1 : row) * a.channels + first_channel;
  }
}

/// The sum before silu. Nothing is fused: the GPU's bits.
TROUPE_INLINE Vec conv_sum(const float* const* source, const float* weight, std::int64_t taps, std::int64_t i, Mask m) {
  Vec sum = zero();
  if (taps == kUsualTaps && source[0] != nullptr) {  // then all are there
#pragma GCC unroll 4
    for (std::int64_t j = 0; j < kUsualTaps; ++j)
      sum = add(sum, mul(load(weight + j * kConvChannels + i), load(source[j] + i, m)));
    return sum;
  }
  for (std::int64_t j = 0; j < taps; ++j)
    if (source[j] != nullptr) sum = add(sum, mul(load(weight + j * kConvChannels + i), load(source[j] + i, m)));
  return sum;
}

void conv_channels(const ConvTask<CausalConv>& task) {
  const CausalConv& a = *task.args;
  const float* source[kConvTaps];
  for (std::int64_t begin = task.begin; begin < task.end; begin += kConvChannels) {
    const std::int64_t count = task.end - begin < kConvChannels ? task.end - begin : kConvChannels;
    turn_taps(a.weight + begin * a.taps, a.taps, count, task.scratch);
    for (std::int64_t t = 0; t < a.rows; ++t) {
      conv_sources(a, t, begin, source);
      for (std::int64_t i = 0; i < count; i += 16) {
        const Mask m = first(count - i);
        const Vec sum = conv_sum(source, task.scratch, a.taps, i, m);
        store(a.y + t * a.channels + begin + i, mul(sum, sigmoid(sum)), m);
      }
    }
  }
}

/// Row t, channels [begin + i, ...): dy becomes the sum's gradient ds, which goes into dweight's sums and, by tap, into
/// dx: rows are complete when the last row that reads them has passed.
TROUPE_INLINE void conv_gradient(const CausalConvGrad& a, const float* const* source, float* const* dsource,
                                 const float* weight, float* dweight, const float* dy, std::int64_t i, Mask m) {
  const Vec sum = conv_sum(source, weight, a.forward.taps, i, m), s = sigmoid(sum), one = set(1);
  const Vec ds = mul(load(dy + i, m), mul(s, fma(sum, sub(one, s), one)));
  for (std::int64_t j = 0; j < a.forward.taps; ++j) {
    const std::int64_t at = j * kConvChannels + i;
    if (source[j] != nullptr) store(dweight + at, fma(ds, load(source[j] + i, m), load(dweight + at)));
    if (dsource[j] == nullptr) continue;
    const bool last = j + 1 == a.forward.taps;  // the first to reach this row
    store(dsource[j] + i, last ? mul(load(weight + at), ds) : fma(load(weight + at), ds, load(dsource[j] + i, m)), m);
  }
}

void conv_gradients(const ConvTask<CausalConvGrad>& task) {
  const CausalConvGrad& a = *task.args;
  const CausalConv& f = a.forward;
  const float* source[kConvTaps];
  float* dsource[kConvTaps];
  float* const weight = task.scratch;
  float* const some = weight + f.taps * kConvChannels;
  float* const all = some + f.taps * kConvChannels;
  for (std::int64_t begin = task.begin; begin < task.end; begin += kConvChannels) {
    const std::int64_t count = task.end - begin < kConvChannels ? task.end - begin : kConvChannels;
    const std::int64_t sums = f.taps * kConvChannels;
    turn_taps(f.weight + begin * f.taps, f.taps, count, weight);
    turn_taps(a.dweight + begin * f.taps, f.taps, count, all);
    for (std::int64_t i = 0; i < sums; i += 16) store(some + i, zero());
    for (std::int64_t row = 0; a.dhistory != nullptr && row + 1 < f.taps; ++row)
      for (std::int64_t i = 0; i < count; i += 16) store(a.dhistory + row * f.channels + begin + i, zero(), first(count - i));
    for (std::int64_t t = 0; t < f.rows; ++t) {
      conv_sources(f, t, begin, source);
      for (std::int64_t j = 0; j < f.taps; ++j) {
        const std::int64_t row = t - f.taps + 1 + j;
        float* x = row < 0 ? a.dhistory : a.dx;
        dsource[j] = x == nullptr ? nullptr : x + (row < 0 ? row + f.taps - 1 : row) * f.channels + begin;
      }
      for (std::int64_t i = 0; i < count; i += 16)
        conv_gradient(a, source, dsource, weight, some, a.dy + t * f.channels + begin, i, first(count - i));
      if ((t + 1) % kConvRows != 0 && t + 1 < f.rows) continue;
      for (std::int64_t i = 0; i < sums; i += 16) {
        store(all + i, add(load(all + i), load(some + i)));
        store(some + i, zero());
      }
    }
    for (std::int64_t c = 0; c < count; ++c)
      for (std::int64_t j = 0; j < f.taps; ++j) a.dweight[(begin + c) * f.taps + j] = all[j * kConvChannels + c];
  }
}
