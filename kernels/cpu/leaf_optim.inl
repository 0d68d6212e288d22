// Elementwise passes over flat arrays. Included inside the namespace of one instruction set.

void adamw_range(const AdamW& a, const AdamWFactors& f, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; i += 16) {
    const Mask lanes = first(end - i);
    const Vec g = mul(load(a.grad + i, lanes), set(f.grad_scale));
    const Vec m = fma(load(a.m + i, lanes), set(f.beta1), mul(g, set(f.one_minus_beta1)));
    const Vec v = fma(load(a.v + i, lanes), set(f.beta2), mul(mul(g, g), set(f.one_minus_beta2)));
    const Vec denominator = fma(sqrt(v), set(f.inv_sqrt_correction2), set(f.eps));
    const Vec p = mul(load(a.param + i, lanes), set(f.decay));
    store(a.m + i, m, lanes);
    store(a.v + i, v, lanes);
    store(a.param + i, fnma(set(f.step_size), div(m, denominator), p), lanes);
  }
}

void add_array(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 16) {
    const Mask m = first(n - i);
    store(y + i, add(load(y + i, m), load(x + i, m)), m);
  }
}

void scale_array(float* x, std::int64_t n, float factor) {
  for (std::int64_t i = 0; i < n; i += 16) store(x + i, mul(load(x + i, first(n - i)), set(factor)), first(n - i));
}

void exp_array(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 16) store(y + i, exp(load(x + i, first(n - i))), first(n - i));
}

void log_array(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 16) store(y + i, log(load(x + i, first(n - i))), first(n - i));
}
