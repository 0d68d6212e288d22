#include "kernels/streams.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#include "kernels/pointwise.h"

namespace troupe::kernels {
namespace {

/// Divides every column (by_rows: every row) by its sum + eps.
void normalise(float* c, std::int64_t n, bool by_rows, float eps) {
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = 0;
    for (std::int64_t j = 0; j < n; ++j) sum += by_rows ? c[i * n + j] : c[j * n + i];
    for (std::int64_t j = 0; j < n; ++j) (by_rows ? c[i * n + j] : c[j * n + i]) /= sum + eps;
  }
}

void mix_row(const HyperMix& a, const float* mix, float* out) {
  const std::int64_t n = a.streams;
  const std::int64_t width = 2 * n + n * n;
  for (std::int64_t i = 0; i < width; ++i) out[i] = mix[i] * a.scale[i < n ? 0 : i < 2 * n ? 1 : 2] + a.base[i];
  pointwise(Pointwise::kSigmoid, out, out, 2 * n);
  for (std::int64_t i = 0; i < n; ++i) out[i] += a.eps;
  for (std::int64_t i = n; i < 2 * n; ++i) out[i] *= 2;
  float* c = out + 2 * n;
  for (std::int64_t i = 0; i < n; ++i) {
    const float most = *std::max_element(c + i * n, c + (i + 1) * n);
    for (std::int64_t j = i * n; j < (i + 1) * n; ++j) c[j] -= most;
  }
  table().exponential(c, c, n * n);
  normalise(c, n, true, 0);
  for (std::int64_t i = 0; i < n * n; ++i) c[i] += a.eps;
  normalise(c, n, false, a.eps);
  for (std::int64_t step = 1; step < a.iterations; ++step) {
    normalise(c, n, true, a.eps);
    normalise(c, n, false, a.eps);
  }
}

}  // namespace

void hyper_mix(const HyperMix& a) {
  const std::int64_t width = (2 + a.streams) * a.streams;
  const double operations = static_cast<double>(a.rows * width * (32 + 8 * a.iterations));
  run_ranges(a.rows, 1, threads_for(operations), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) mix_row(a, a.mix + row * width, a.out + row * width);
  });
}

void pool_window(const PoolWindow& a) {
  const std::int64_t width = (a.overlap ? 2 : 1) * a.channels;
  const std::int64_t slots = (a.overlap ? 2 : 1) * a.ratio;
  const auto channels = static_cast<std::size_t>(a.channels);
  std::vector<float> most(channels, -INFINITY);
  std::vector<float> sum(channels, 0.0F);
  std::vector<float> e(channels);
  /// Calls body(values, logits, position) for every slot that is there.
  const auto each_slot = [&](const auto& body) {
    for (std::int64_t s = 0; s < slots; ++s) {
      if (a.rows[s] == nullptr) continue;
      const std::int64_t half = s >= a.ratio ? a.channels : 0;
      body(a.rows[s] + half, a.rows[s] + width + half, a.position + s % a.ratio * width + half);
    }
  };
  each_slot([&](const float*, const float* logits, const float* position) {
    for (std::size_t c = 0; c < channels; ++c) most[c] = std::max(most[c], logits[c] + position[c]);
  });
  std::fill_n(a.out, a.channels, 0.0F);
  each_slot([&](const float* values, const float* logits, const float* position) {
    for (std::size_t c = 0; c < channels; ++c) e[c] = logits[c] + position[c] - most[c];
    table().exponential(e.data(), e.data(), a.channels);
    for (std::size_t c = 0; c < channels; ++c) {
      sum[c] += e[c];
      a.out[c] += e[c] * values[c];
    }
  });
  for (std::size_t c = 0; c < channels; ++c) a.out[c] /= sum[c];
}

}  // namespace troupe::kernels
