// Speed of the CUDA kernels on this machine's first device: `cuda_kernels_bench`. A line a kernel and size: microseconds
// (median of 20 launches after 3, timed with CUDA's events), what it moves and computes in that time, and its share of
// what an H200 could do at most: 4.8 TB/s, 67 TF float32, 989 TF bfloat16.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda_library.h"

#define TROUPE_ENTRY(name, Args) \
  extern "C" const char* troupe_cuda_##name(const troupe::kernels::Args* args, void* stream);
TROUPE_CUDA_KERNELS(TROUPE_ENTRY)
TROUPE_CUDA_CALLS(TROUPE_ENTRY)
#undef TROUPE_ENTRY

namespace troupe::kernels {
namespace {

constexpr double kBytesPerSecond = 4.8e12, kFloat32 = 67e12, kBfloat16 = 989e12;

/// Device memory that lives as long as the program.
template <class T>
T* memory(std::int64_t n, const std::vector<T>& pattern = {}) {
  std::vector<T> host(static_cast<std::size_t>(n));
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < host.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    host[i] = pattern.empty() ? T{} : pattern[state >> 8 & (pattern.size() - 1)];
  }
  void* device = nullptr;
  if (cudaMalloc(&device, host.size() * sizeof(T)) != cudaSuccess ||
      cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice) != cudaSuccess) {
    std::fprintf(stderr, "out of device memory\n");
    std::exit(1);
  }
  return static_cast<T*>(device);
}

template <class T>
T* copied(const std::vector<T>& host) {
  T* device = memory<T>(static_cast<std::int64_t>(host.size()));
  cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
  return device;
}

/// Numbers in (-1, 1).
float* floats(std::int64_t n) {
  return memory<float>(n, {-0.9F, -0.61F, -0.37F, -0.11F, 0.07F, 0.29F, 0.53F, 0.83F});
}

double microseconds(const std::function<const char*()>& launch) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int i = -3; i < 20; ++i) {
    cudaEventRecord(begin, nullptr);
    if (const char* refused = launch()) {
      std::fprintf(stderr, "%s\n", refused);
      return -1;
    }
    cudaEventRecord(end, nullptr);
    if (cudaEventSynchronize(end) != cudaSuccess) {
      std::fprintf(stderr, "the kernel failed: %s\n", cudaGetErrorString(cudaGetLastError()));
      std::exit(1);
    }
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    if (i >= 0) times.push_back(milliseconds * 1000);
  }
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]);
}

void line(const char* name, double bytes, double flops, double peak, const std::function<const char*()>& launch) {
  const double us = microseconds(launch);
  if (us < 0) return;
  const double roof_us = std::max(bytes / kBytesPerSecond, flops / peak) * 1e6;
  std::printf("%-44s %10.1f us %8.2f TB/s %8.2f TF %6.1f %% of the roof\n", name, us, bytes / us * 1e-6,
              flops / us * 1e-6, 100 * roof_us / us);
  std::fflush(stdout);
}

void rows(std::int64_t n, std::int64_t d) {
  const double numbers = static_cast<double>(n * d);
  float *x = floats(n * d), *y = floats(n * d), *w = floats(d), *dy = floats(n * d), *inv = floats(n), *dw = floats(d);
  char name[64];
  const auto say = [&](const char* kernel) {
    std::snprintf(name, sizeof name, "%s %lld x %lld", kernel, static_cast<long long>(n), static_cast<long long>(d));
    return name;
  };
  RmsNormForward f;
  f.x = x, f.weight = w, f.y = y, f.inv_rms = inv, f.rows = n, f.cols = d;
  line(say("rmsnorm_forward"), 8 * numbers, 4 * numbers, kFloat32, [&] { return troupe_cuda_rmsnorm_forward(&f, nullptr); });
  RmsNormBackward b;
  b.x = x, b.weight = w, b.inv_rms = inv, b.dy = dy, b.dx = y, b.dweight = dw, b.rows = n, b.cols = d;
  line(say("rmsnorm_backward"), 20 * numbers, 8 * numbers, kFloat32, [&] { return troupe_cuda_rmsnorm_backward(&b, nullptr); });
  const SwigluForward s{x, dy, y, n, d, 0, 0};
  line(say("swiglu_forward"), 12 * numbers, 25 * numbers, kFloat32, [&] { return troupe_cuda_swiglu_forward(&s, nullptr); });
  const AdamW a{x, dy, y, floats(n * d), n * d};
  line(say("adamw_step"), 28 * numbers, 15 * numbers, kFloat32, [&] { return troupe_cuda_adamw_step(&a, nullptr); });
}

void logits(std::int64_t n, std::int64_t vocab) {
  const double numbers = static_cast<double>(n * vocab);
  float *x = floats(n * vocab), *lp = floats(n), *entropy = floats(n), *lse = floats(n);
  auto* targets = memory<std::int32_t>(n);
  char name[64];
  std::snprintf(name, sizeof name, "logprob_forward %lld x %lld", static_cast<long long>(n), static_cast<long long>(vocab));
  const LogprobForward f{x, targets, lp, entropy, lse, nullptr, n, vocab, 0, 1};
  line(name, 4 * numbers, 25 * numbers, kFloat32, [&] { return troupe_cuda_logprob_forward(&f, nullptr); });
  std::snprintf(name, sizeof name, "sample_rows %lld x %lld", static_cast<long long>(n), static_cast<long long>(vocab));
  std::vector<SampleRow> draws;
  for (std::int64_t i = 0; i < n; ++i) draws.push_back({x + i * vocab, 0.6, 1});
  const CudaSampleRows s{copied(draws), n, vocab, memory<char>(cuda_sample_bytes(n, vocab))};
  line(name, 12 * numbers, 25 * numbers, kFloat32, [&] { return troupe_cuda_sample_rows(&s, nullptr); });
}

/// `sequences` of `keys` tokens; the last `queries` of each ask.
void attention(const AttentionShape& shape, std::int64_t sequences, std::int64_t queries, std::int64_t keys) {
  const std::int64_t q_row = shape.heads * shape.head_dim, kv_row = shape.kv_heads * shape.head_dim;
  float *q = floats(sequences * queries * q_row), *k = floats(sequences * keys * kv_row), *v = floats(sequences * keys * kv_row),
        *out = floats(sequences * queries * q_row);
  std::vector<KeySpan> spans;
  for (std::int64_t i = 0; i < sequences; ++i)
    spans.push_back({k + i * keys * kv_row, v + i * keys * kv_row, keys, kv_row, KvLayout::kRows});
  const KeySpan* dev_spans = copied(spans);
  std::vector<AttentionSegment> segments;
  for (std::int64_t i = 0; i < sequences; ++i)
    segments.push_back({q + i * queries * q_row, out + i * queries * q_row, nullptr, queries, 0, 0, dev_spans + i, 1});
  CudaAttention a{shape, copied(segments), sequences, queries, nullptr, keys};
  if (queries == 1) a.workspace = memory<char>(cuda_attention_bytes(shape, sequences, queries, keys));
  const double pairs = static_cast<double>(sequences * queries * q_row) * (static_cast<double>(keys) - static_cast<double>(queries - 1) / 2);
  char name[64];
  std::snprintf(name, sizeof name, "attention %lld x %lld of %lld keys", static_cast<long long>(sequences),
                static_cast<long long>(queries), static_cast<long long>(keys));
  line(name, 8.0 * static_cast<double>(sequences * keys * kv_row), 4 * pairs, kFloat32, [&] { return troupe_cuda_attention_forward(&a, nullptr); });
}

void products(std::int64_t m, std::int64_t n, std::int64_t k) {
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n * k);
  const double numbers = static_cast<double>(m * k + n * k);
  const double results = 4.0 * static_cast<double>(m * n);
  float *x = floats(m * k), *w = floats(n * k), *y = floats(m * n);
  char name[64];
  const auto say = [&](const char* kernel) {
    std::snprintf(name, sizeof name, "%s %lld x %lld x %lld", kernel, static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k));
    return name;
  };
  CudaMatmul a;
  a.x = x, a.w = w, a.y = y, a.m = m, a.n = n, a.k = k;
  line(say("matmul float32"), 4 * numbers + results, flops, kFloat32, [&] { return troupe_cuda_matmul(&a, nullptr); });
  a.precision = Precision::kBfloat16;
  line(say("matmul bfloat16, the CPU's bits"), 4 * numbers + results, flops, kFloat32, [&] { return troupe_cuda_matmul(&a, nullptr); });
  constexpr std::int64_t kWorkspace = 32 << 20;
  const std::vector<std::uint16_t> pattern = {0x3f10, 0xbf20, 0x3e80, 0xbe10};
  const CudaTensorMatmul t{memory(m * k, pattern), memory(n * k, pattern), y, m, n, k, memory<char>(kWorkspace), kWorkspace};
  line(say("matmul_tensor"), 2 * numbers + results, flops, kBfloat16, [&] { return troupe_cuda_matmul_tensor(&t, nullptr); });
  line(say("matmul_library"), 2 * numbers + results, flops, kBfloat16, [&] { return troupe_cuda_matmul_library(&t, nullptr); });
}

void recurrence(std::int64_t rows, std::int64_t key_heads, std::int64_t value_heads, std::int64_t dim) {
  const std::int64_t width = 2 * key_heads * dim + value_heads * dim;
  const DeltaRule a{floats(rows * width), memory<float>(rows * value_heads), floats(rows * value_heads), floats(rows * value_heads * dim),
                    floats(value_heads * dim * dim), rows, key_heads, value_heads, dim, dim};
  const auto steps = static_cast<double>(rows * value_heads);
  line("delta_rule 1024 rows", 4 * static_cast<double>(rows) * static_cast<double>(width + value_heads * dim), 8 * steps * static_cast<double>(dim * dim), kFloat32,
       [&] { return troupe_cuda_delta_rule(&a, nullptr); });
}

}  // namespace
}  // namespace troupe::kernels

int main() {
  using namespace troupe::kernels;
  cudaDeviceProp device{};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) {
    std::fprintf(stderr, "no CUDA device\n");
    return 1;
  }
  std::printf("%s, %d SMs\n", device.name, device.multiProcessorCount);
  rows(16, 4096);
  rows(8192, 4096);
  logits(16, 151936);
  logits(512, 151936);
  attention({32, 8, 128, 0}, 64, 1, 2048);
  attention({32, 8, 128, 0}, 1, 1, 16384);
  attention({32, 8, 128, 0}, 4, 2048, 2048);
  for (const std::int64_t m : {1, 16, 256, 4096}) products(m, 4096, 4096);
  recurrence(1024, 16, 32, 128);
  return 0;
}
