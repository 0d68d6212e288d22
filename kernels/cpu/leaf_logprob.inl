// Softmax statistics of logit rows and their gradient. Included inside the namespace of one instruction set.

/// Differences to the maximum are cut here: exp is 0 long before, and 0 * -inf would spoil the entropy.
inline constexpr float kFarBelow = -200.0f;

TROUPE_INLINE float row_maximum(const float* x, std::int64_t n) {
  const Vec lowest = set(-__builtin_inff());
  Sums best = {{lowest, lowest, lowest, lowest}};
  for_vectors(
      n, [&](std::int64_t i, Mask m, int which) __attribute__((always_inline)) {
        best.part[which] = max(select(m, load(x + i, m), lowest), best.part[which]);
      });
  return max_lane(max(max(best.part[0], best.part[1]), max(best.part[2], best.part[3])));
}

TROUPE_INLINE std::int32_t first_index_of(float value, const float* x, std::int64_t n) {
  const Vec wanted = set(value);
  for (std::int64_t i = 0; i < n; i += 16) {
    const unsigned hits =
        bits(equal(load(x + i, first(n - i)), wanted)) & ((n - i >= 16) ? 0xffffu : (1u << (n - i)) - 1u);
    if (hits != 0) return static_cast<std::int32_t>(i + __builtin_ctz(hits));
  }
  return 0;
}

/// Where the exponentials of a row go, if anywhere: 0 up to a multiple of 16, and the sum of every 16.
struct KeptExponentials {
  float* values;
  float* sums;
};

template <bool kEntropy, bool kDivide>
TROUPE_INLINE void sum_exponentials(const float* x, std::int64_t n, float temperature, float maximum, float* sum,
                                    float* weighted, const KeptExponentials* kept = nullptr) {
  const Vec t = set(temperature);
  const Vec top = set(maximum);
  Sums e_sums = no_sums();
  Sums w_sums = no_sums();
  for_vectors(
      n, [&](std::int64_t i, Mask m, int which) __attribute__((always_inline)) {
        Vec z = load(x + i, m);
        if (kDivide) z = div(z, t);
        const Vec below = max(set(kFarBelow), sub(z, top));  // NaN passes: it is the second operand
        const Vec e = keep(m, exp(below));
        e_sums.part[which] = add(e_sums.part[which], e);
        if (kEntropy) w_sums.part[which] = fma(e, keep(m, below), w_sums.part[which]);
        if (kept != nullptr) {
          store(kept->values + i, e);
          kept->sums[i / 16] = sum_lanes(e);
        }
      });
  *sum = total(e_sums);
  if (kEntropy) *weighted = total(w_sums);
}

TROUPE_INLINE void softmax_sums(const LogprobForward& a, const float* x, float maximum, float* sum, float* weighted) {
  const bool divide = a.temperature != 1.0f;
  if (a.entropy != nullptr) {
    if (divide) {
      sum_exponentials<true, true>(x, a.vocab, a.temperature, maximum, sum, weighted);
    } else {
      sum_exponentials<true, false>(x, a.vocab, a.temperature, maximum, sum, weighted);
    }
  } else if (divide) {
    sum_exponentials<false, true>(x, a.vocab, a.temperature, maximum, sum, weighted);
  } else {
    sum_exponentials<false, false>(x, a.vocab, a.temperature, maximum, sum, weighted);
  }
}

void logprob_forward_rows(const LogprobForward& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = a.logits + row * a.ldl;
    const float largest = row_maximum(x, a.vocab);
    if (a.argmax != nullptr) a.argmax[row] = first_index_of(largest, x, a.vocab);
    if (a.logprob == nullptr && a.entropy == nullptr && a.lse == nullptr) continue;
    const float maximum = largest / a.temperature;  // division is monotone: the maximum of z in every bit
    float sum = 0;
    float weighted = 0;
    softmax_sums(a, x, maximum, &sum, &weighted);
    const float log_sum = sum == sum ? lane0(log(set(sum))) : sum;
    if (a.logprob != nullptr) a.logprob[row] = (x[a.targets[row]] / a.temperature - maximum) - log_sum;
    if (a.entropy != nullptr) a.entropy[row] = log_sum - weighted / sum;
    if (a.lse != nullptr) a.lse[row] = maximum + log_sum;
  }
}

void logprob_backward_rows(const LogprobBackward& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = a.logits + row * a.ldl;
    float* d = a.dlogits + row * a.ldd;
    const Vec t = set(a.temperature);
    const Vec lse = set(a.lse[row]);
    const Vec dlogprob = set(a.dlogprob[row]);
    const Vec dentropy = set(a.dentropy == nullptr ? 0.0f : a.dentropy[row]);
    const Vec entropy = set(a.dentropy == nullptr ? 0.0f : a.entropy[row]);
    for (std::int64_t i = 0; i < a.vocab; i += 16) {
      const Mask m = first(a.vocab - i);
      const Vec log_p = max(set(kFarBelow), sub(div(load(x + i, m), t), lse));
      const Vec pull = fma(dentropy, add(log_p, entropy), dlogprob);
      store(d + i, div(mul(sub(zero(), exp(log_p)), pull), t), m);
    }
    for (std::int64_t i = a.vocab; i < a.ldd; i += 16) store(d + i, zero(), first(a.ldd - i));
    d[a.targets[row]] += a.dlogprob[row] / a.temperature;
  }
}
