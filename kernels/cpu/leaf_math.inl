// Exponential, logarithm and sums of vectors. Included inside the namespace of one instruction set.

/// exp(x), at most 2 ulp off for x in [-87.3, 88.3]; 0 below (so also for -inf), exp(88.3) above, NaN for NaN.
/// x = n ln 2 + r, |r| <= ln(2)/2 + rounding; exp(r) = 1 + r + r^2 q(r) with q fitted at Chebyshev nodes (1e-8
/// relative).
TROUPE_INLINE Vec exp(Vec x) {
  const Vec kRoundToWhole = set(12582912.0f);  // 1.5 * 2^23: adding it leaves whole numbers only
  const Mask underflow = less(x, set(-87.3f));
  const Vec in_range = max(set(-87.3f), min(set(88.3f), x));  // NaN passes: it is the second operand
  const Vec n = sub(fma(in_range, set(1.44269504f), kRoundToWhole), kRoundToWhole);
  const Vec r = fnma(n, set(-2.12194440e-4f), fnma(n, set(0.693359375f), in_range));
  Vec q = set(0.00139262508f);
  q = fma(q, r, set(0.00836323288f));
  q = fma(q, r, set(0.0416665542f));
  q = fma(q, r, set(0.166665767f));
  q = fma(q, r, set(0.5f));
  const Vec p = add(fma(mul(r, r), q, r), set(1.0f));
  return select(underflow, zero(), mul(p, pow2(n)));
}

/// log(x) for positive normal x, at most 2 ulp off. x = f 2^e; log(1 + t) = t - t^2/2 + t^3 q(t).
TROUPE_INLINE Vec log(Vec x) {
  Vec e;
  const Vec t = sub(split_exponent(x, &e), set(1.0f));
  Vec q = set(-0.0790274377f);
  q = fma(q, t, set(0.126223198f));
  q = fma(q, t, set(-0.129981838f));
  q = fma(q, t, set(0.142144959f));
  q = fma(q, t, set(-0.166412815f));
  q = fma(q, t, set(0.200010451f));
  q = fma(q, t, set(-0.250003064f));
  q = fma(q, t, set(0.333333307f));
  const Vec t2 = mul(t, t);
  Vec tail = fma(e, set(-2.12194440e-4f), mul(mul(t2, t), q));
  tail = fnma(t2, set(0.5f), tail);
  return fma(e, set(0.693359375f), add(t, tail));
}

/// 1 / (1 + exp(-x)), without overflow on either side.
TROUPE_INLINE Vec sigmoid(Vec x) {
  const Vec e = exp(sub(zero(), abs(x)));
  const Vec numerator = select(less(x, zero()), e, set(1.0f));
  return div(numerator, add(set(1.0f), e));
}

/// Four sums side by side, for long rows: column c belongs to sum (c / 16) % 4, lane c % 16.
struct Sums {
  Vec part[4];
};
TROUPE_INLINE Sums no_sums() { return {{zero(), zero(), zero(), zero()}}; }
TROUPE_INLINE float total(const Sums& s) {
  return sum_lanes(add(add(s.part[0], s.part[1]), add(s.part[2], s.part[3])));
}

/// Calls body(offset, mask, which) for the vectors of a row of n; `which` cycles through 0..3, the last mask may be
/// partial.
template <class F>
TROUPE_INLINE void for_vectors(std::int64_t n, F&& body) {
  const Mask all = first(16);
  std::int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    body(i, all, 0);
    body(i + 16, all, 1);
    body(i + 32, all, 2);
    body(i + 48, all, 3);
  }
  for (int which = 0; i < n; i += 16, ++which) body(i, first(n - i), which);
}
