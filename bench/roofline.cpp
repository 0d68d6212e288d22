#include "bench/roofline.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "kernels/isa.h"

namespace troupe::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kRounds = 4'000'000;
constexpr std::int64_t kFloats = std::int64_t{64} << 20;  // 256 MiB an array
constexpr int kRepeats = 7;                               // the best counts: this is a bound

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// 10 chains hide a latency of 4 or 5 cycles at two instructions a cycle.
__attribute__((target("avx512f"), noinline)) float chains_512(std::int64_t rounds) {
  const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-6f);
  __m512 a[10];
  for (auto& v : a) v = x;
  for (std::int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 10
    for (auto& v : a) v = _mm512_fmadd_ps(v, x, y);
  __m512 sum = a[0];
  for (int i = 1; i < 10; ++i) sum = _mm512_add_ps(sum, a[i]);
  float out[16] = {};
  _mm512_storeu_ps(out, sum);
  return out[0];
}

__attribute__((target("avx2,fma"), noinline)) float chains_256(std::int64_t rounds) {
  const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-6f);
  __m256 a[10];
  for (auto& v : a) v = x;
  for (std::int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 10
    for (auto& v : a) v = _mm256_fmadd_ps(v, x, y);
  float out[8] = {};
  __m256 sum = a[0];
  for (int i = 1; i < 10; ++i) sum = _mm256_add_ps(sum, a[i]);
  _mm256_storeu_ps(out, sum);
  return out[0];
}

}  // namespace

double peak_gflops(int threads) {
  const bool wide = kernels::active_isa() != kernels::Isa::kAvx2;
  double best = 0;
  float sink = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto start = Clock::now();
#pragma omp parallel for num_threads(threads) reduction(+ : sink)
    for (int t = 0; t < threads; ++t) sink += wide ? chains_512(kRounds) : chains_256(kRounds);
    const double operations = 2.0 * 10 * (wide ? 16 : 8) * static_cast<double>(kRounds) * threads;
    best = std::max(best, operations / seconds_since(start) * 1e-9);
  }
  volatile float keep = sink;
  (void)keep;
  return best;
}

double peak_bandwidth(int threads) {
  std::vector<float> a(static_cast<std::size_t>(kFloats), 1.0f), b(static_cast<std::size_t>(kFloats), 2.0f);
  double best = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto start = Clock::now();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (std::int64_t i = 0; i < kFloats; ++i)
      b[static_cast<std::size_t>(i)] = 0.5f * a[static_cast<std::size_t>(i)] + b[static_cast<std::size_t>(i)];
    best = std::max(best, 3.0 * 4 * static_cast<double>(kFloats) / seconds_since(start) * 1e-9);
  }
  return best;
}

}  // namespace troupe::bench
