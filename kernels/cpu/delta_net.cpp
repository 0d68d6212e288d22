#include "kernels/delta_net.h"

#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#include "kernels/pointwise.h"

namespace troupe::kernels {
namespace {

/// x / sqrt(sum x^2 + 1e-6) * factor; the sum is one chain in float64.
void unit(const float* x, std::int64_t n, float factor, float* y) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const auto scale = static_cast<float>(1 / std::sqrt(sum + 1e-6));
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * factor;
}

struct Work {
  std::vector<float> q, k, u;
};

void step(const DeltaRule& a, std::int64_t row, std::int64_t head, Work& work) {
  const std::int64_t keys = a.key_heads * a.key_dim;
  const float* x = a.qkv + row * (2 * keys + a.value_heads * a.value_dim);
  const std::int64_t key_head = head * a.key_heads / a.value_heads;
  unit(x + key_head * a.key_dim, a.key_dim, static_cast<float>(1 / std::sqrt(static_cast<double>(a.key_dim))),
       work.q.data());
  unit(x + keys + key_head * a.key_dim, a.key_dim, 1, work.k.data());
  const float* v = x + 2 * keys + head * a.value_dim;
  float decay = a.decay[row * a.value_heads + head];
  table().exponential(&decay, &decay, 1);
  const float beta = a.beta[row * a.value_heads + head];
  float* state = a.state + head * a.key_dim * a.value_dim;
  float* u = work.u.data();
  float* out = a.out + (row * a.value_heads + head) * a.value_dim;
  for (std::int64_t d = 0; d < a.value_dim; ++d) u[d] = 0;
  for (std::int64_t i = 0; i < a.key_dim; ++i) {
    float* s = state + i * a.value_dim;
    const float k = work.k[static_cast<std::size_t>(i)];
    for (std::int64_t d = 0; d < a.value_dim; ++d) {
      s[d] *= decay;
      u[d] += s[d] * k;
    }
  }
  for (std::int64_t d = 0; d < a.value_dim; ++d) {
    u[d] = beta * (v[d] - u[d]);
    out[d] = 0;
  }
  for (std::int64_t i = 0; i < a.key_dim; ++i) {
    float* s = state + i * a.value_dim;
    const float k = work.k[static_cast<std::size_t>(i)];
    const float q = work.q[static_cast<std::size_t>(i)];
    for (std::int64_t d = 0; d < a.value_dim; ++d) {
      s[d] += k * u[d];
      out[d] += s[d] * q;
    }
  }
}

}  // namespace

void causal_conv(const CausalConv& a) {
  const double operations = static_cast<double>(a.rows * a.channels * (a.taps + 32));
  run_ranges(a.rows, 1, threads_for(operations), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* y = a.y + t * a.channels;
      for (std::int64_t c = 0; c < a.channels; ++c) y[c] = 0;
      for (std::int64_t j = 0; j < a.taps; ++j) {
        const std::int64_t source = t - a.taps + 1 + j;
        if (source < 0 && a.history == nullptr) continue;
        const float* x = source < 0 ? a.history + (source + a.taps - 1) * a.channels : a.x + source * a.channels;
        for (std::int64_t c = 0; c < a.channels; ++c) y[c] += a.weight[c * a.taps + j] * x[c];
      }
      pointwise(Pointwise::kSilu, y, y, a.channels);
    }
  });
}

void delta_rule(const DeltaRule& a) {
  TROUPE_CHECK(a.key_heads > 0 && a.value_heads % a.key_heads == 0, "delta_rule: key heads must divide value heads");
  const double operations = 6.0 * static_cast<double>(a.rows * a.value_heads * a.key_dim * a.value_dim);
  run_ranges(a.value_heads, 1, threads_for(operations), [&](std::int64_t begin, std::int64_t end) {
    const auto keys = static_cast<std::size_t>(a.key_dim);
    Work work{std::vector<float>(keys), std::vector<float>(keys),
              std::vector<float>(static_cast<std::size_t>(a.value_dim))};
    for (std::int64_t head = begin; head < end; ++head)
      for (std::int64_t row = 0; row < a.rows; ++row) step(a, row, head, work);
  });
}

}  // namespace troupe::kernels
