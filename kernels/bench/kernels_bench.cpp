// Speed of the CPU kernels: `kernels_bench [--benchmark_filter=...]`. Rates are GFLOP/s of multiply-adds (exponentials
// not counted). Threads: OMP_NUM_THREADS.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "kernels/attention.h"
#include "kernels/delta_net.h"
#include "kernels/gemm.h"
#include "kernels/listed_attention.h"
#include "kernels/logprob.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

namespace troupe::kernels {
namespace {

using Floats = std::vector<float>;

Floats numbers(std::int64_t n) {
  Floats x(static_cast<std::size_t>(n));
  std::uint32_t state = 1;
  for (float& v : x) v = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f;
  return x;
}

void rate(benchmark::State& state, double operations) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(operations * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void bench_matmul(benchmark::State& state) {
  const std::int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const Floats x = numbers(m * k), w = numbers(n * k);
  Floats y(static_cast<std::size_t>(m * n));
  PackedMatrix packed;
  packed.pack(w.data(), n, k);
  for (auto _ : state) matmul(x.data(), m, packed, y.data());
  rate(state, 2.0 * static_cast<double>(m * n * k));
}
BENCHMARK(bench_matmul)
    ->UseRealTime()
    ->ArgsProduct({{1, 4, 16, 64, 512}, {576}, {576}})
    ->ArgsProduct({{1, 16, 512}, {1536}, {576}})
    ->ArgsProduct({{1, 16, 512}, {384}, {128}})
    ->ArgsProduct({{1, 16, 512}, {2048}, {2048}})
    ->Args({4, 49152, 576});

void bench_pack(benchmark::State& state) {
  const std::int64_t n = state.range(0), k = state.range(1);
  const Floats w = numbers(n * k);
  PackedMatrix packed;
  for (auto _ : state) packed.pack(w.data(), n, k);
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * n * k * 8);
}
BENCHMARK(bench_pack)->UseRealTime()->Args({1536, 576})->Args({4096, 1024});

/// One sequence of `keys` tokens, the last `rows` of them as queries.
void bench_attention(benchmark::State& state) {
  const AttentionShape shape{state.range(2), state.range(3), state.range(4), 0};
  const std::int64_t rows = state.range(0), keys = state.range(1), capacity = 32;
  const std::int64_t q_row = shape.heads * shape.head_dim, kv_row = shape.kv_heads * shape.head_dim;
  const Floats q = numbers(rows * q_row), k = numbers(keys * kv_row), v = numbers(keys * kv_row);
  Floats out(q.size());
  std::vector<Floats> page_k, page_v;
  std::vector<KeySpan> spans;
  if (rows == 1) {
    for (std::int64_t t = 0; t < keys; t += capacity) {
      page_k.emplace_back(static_cast<std::size_t>(kv_page_floats(shape, capacity)), 0.1f);
      page_v.emplace_back(static_cast<std::size_t>(kv_page_floats(shape, capacity)), 0.1f);
    }
    for (std::size_t i = 0; i < page_k.size(); ++i)
      spans.push_back({page_k[i].data(), page_v[i].data(), capacity, capacity, KvLayout::kPages});
  } else {
    spans.push_back({k.data(), v.data(), keys, kv_row, KvLayout::kRows});
  }
  const AttentionSegment segment{q.data(), out.data(), nullptr,      rows,
                                 0,        0,          spans.data(), static_cast<std::int64_t>(spans.size())};
  for (auto _ : state) attention_forward(shape, &segment, 1);
  rate(state, 4.0 * static_cast<double>(q_row) * static_cast<double>(rows) *
                  (static_cast<double>(keys) - static_cast<double>(rows - 1) / 2));
}
BENCHMARK(bench_attention)
    ->UseRealTime()
    ->Args({1, 64, 4, 2, 32})
    ->Args({1, 1024, 4, 2, 64})
    ->Args({1, 1024, 9, 3, 64})
    ->Args({1, 4096, 9, 3, 64})
    ->Args({1, 1024, 4, 4, 64})
    ->Args({64, 64, 4, 2, 32})
    ->Args({512, 512, 4, 2, 64})
    ->Args({512, 512, 9, 3, 64});

void bench_attention_backward(benchmark::State& state) {
  const AttentionShape shape{state.range(1), state.range(2), state.range(3), 0, static_cast<Precision>(state.range(4))};
  const std::int64_t rows = state.range(0);
  const std::int64_t q_row = shape.heads * shape.head_dim, kv_row = shape.kv_heads * shape.head_dim;
  const Floats q = numbers(rows * q_row), k = numbers(rows * kv_row), v = numbers(rows * kv_row),
               lse(static_cast<std::size_t>(rows * shape.heads), 6);
  Floats dq(q.size()), dk(k.size()), dv(v.size());
  const AttentionGradSegment s{q.data(),  q.data(), q.data(), lse.data(),
                               dq.data(), rows,     {},       {k.data(), v.data(), dk.data(), dv.data(), rows}};
  for (auto _ : state) attention_backward(shape, {}, &s, 1);
  rate(state, 10.0 * static_cast<double>(q_row) * static_cast<double>(rows) * static_cast<double>(rows + 1) / 2);
}
BENCHMARK(bench_attention_backward)
    ->UseRealTime()
    ->Args({64, 4, 2, 32, 0})
    ->Args({512, 4, 2, 64, 0})
    ->Args({512, 4, 2, 64, 1})
    ->Args({512, 9, 3, 64, 0})
    ->Args({512, 9, 3, 64, 1});

/// One document: every query of `rows` sees a window and `chosen` entries.
struct ListedCase {
  std::int64_t rows, chosen;
  ListedShape shape;
  std::int64_t row;
  Floats q, kv, out;
  std::vector<std::int32_t> list;
  double seen;

  explicit ListedCase(const benchmark::State& state)
      : rows(state.range(0)), chosen(state.range(6)), shape{state.range(1), state.range(2), state.range(3), state.range(4)} {
    const bool latent = shape.kv_heads == 1;  // values are the beginning of the keys
    shape.value_offset = latent ? 0 : shape.kv_heads * shape.key_dim;
    shape.scale = 0.1f;
    shape.window = state.range(5);
    row = latent ? shape.key_dim : shape.kv_heads * (shape.key_dim + shape.value_dim);
    q = numbers(rows * shape.heads * shape.key_dim);
    kv = numbers(rows * row);
    out = numbers(rows * shape.heads * shape.value_dim);
    list.resize(static_cast<std::size_t>(rows * chosen));
    for (std::size_t i = 0; i < list.size(); ++i) list[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % chosen * 2 % rows);
    seen = static_cast<double>(rows * chosen);
    for (std::int64_t i = 0; i < rows; ++i) seen += static_cast<double>(shape.window > 0 ? std::min(shape.window, i + 1) : i + 1);
  }
};

void bench_listed_attention(benchmark::State& state) {
  ListedCase c(state);
  const RowSpan span{c.kv.data(), c.row, c.rows};
  const ListedSegment s{c.q.data(), c.out.data(), c.rows, c.shape.heads * c.shape.key_dim, c.shape.heads * c.shape.value_dim,
                        0, &span, 1, &span, 1, c.list.data(), c.chosen};
  for (auto _ : state) listed_attention(c.shape, &s, 1);
  rate(state, 2.0 * c.seen * static_cast<double>(c.shape.heads * (c.shape.key_dim + c.shape.value_dim)));
}

void bench_listed_backward(benchmark::State& state) {
  const ListedCase c(state);
  Floats dq(c.q.size()), dkv(c.kv.size()), dentries(c.kv.size());
  const ListedGrad grad{c.q.data(), c.kv.data(), c.kv.data(), c.out.data(), c.list.data(), c.chosen, c.rows,
                        c.chosen > 0 ? c.rows : 0, c.row, dq.data(), dkv.data(), dentries.data(), nullptr};
  const ListedGradSegment s{0, c.rows, 0, 0, 0};
  for (auto _ : state) listed_attention_backward(c.shape, grad, &s, 1);
  rate(state, 2.0 * c.seen * static_cast<double>(c.shape.heads * (3 * c.shape.key_dim + 2 * c.shape.value_dim)));
}

/// GPT-OSS: a window and grouped heads; MLA: latent rows; DeepSeek-V4: a window and entries.
void listed_cases(benchmark::internal::Benchmark* b) {
  b->UseRealTime()->Args({512, 64, 8, 64, 64, 128, 0})->Args({512, 16, 1, 576, 512, 0, 0})->Args({512, 64, 1, 128, 128, 128, 64});
}
BENCHMARK(bench_listed_attention)->Apply(listed_cases);
BENCHMARK(bench_listed_backward)->Apply(listed_cases);

/// Gated DeltaNet's convolution of 8192 channels; bytes are those of x, y and, backward, of x, dy and dx.
void bench_causal_conv(benchmark::State& state) {
  const std::int64_t rows = state.range(0), channels = 8192, taps = 4;
  const bool backward = state.range(1) != 0;
  const Floats x = numbers(rows * channels), dy = x, weight = numbers(channels * taps);
  Floats y(x.size()), dweight(weight.size());
  const CausalConv conv{x.data(), nullptr, weight.data(), y.data(), rows, channels, taps};
  for (auto _ : state) {
    if (backward) {
      causal_conv_backward({conv, dy.data(), y.data(), nullptr, dweight.data()});
    } else {
      causal_conv(conv);
    }
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * rows * channels * (backward ? 12 : 8));
}
BENCHMARK(bench_causal_conv)->UseRealTime()->ArgsProduct({{1, 2048}, {0}})->Args({2048, 1});

void bench_logprob(benchmark::State& state) {
  const std::int64_t rows = state.range(0), vocab = state.range(1);
  const Floats logits = numbers(rows * vocab);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(rows), 3);
  Floats logprob(static_cast<std::size_t>(rows)), entropy(static_cast<std::size_t>(rows));
  LogprobForward a;
  a.logits = logits.data();
  a.targets = targets.data();
  a.logprob = logprob.data();
  a.entropy = entropy.data();
  a.rows = rows;
  a.vocab = vocab;
  a.temperature = static_cast<float>(state.range(2)) / 10;
  for (auto _ : state) logprob_forward(a);
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * rows * vocab);
}
BENCHMARK(bench_logprob)->UseRealTime()->Args({16, 512, 10})->Args({16, 49152, 10})->Args({16, 49152, 7});

void bench_rows(benchmark::State& state) {
  const std::int64_t rows = state.range(0), cols = state.range(1);
  const Floats x = numbers(rows * cols), w = numbers(cols);
  Floats y(x.size());
  RmsNormForward norm;
  norm.x = x.data();
  norm.weight = w.data();
  norm.y = y.data();
  norm.rows = rows;
  norm.cols = cols;
  for (auto _ : state) {
    rmsnorm_forward(norm);
    swiglu_forward({x.data(), x.data(), y.data(), rows, cols, 0, 0});
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * rows * cols);
}
BENCHMARK(bench_rows)->UseRealTime()->Args({1, 128})->Args({16, 576})->Args({512, 1536});

}  // namespace
}  // namespace troupe::kernels

BENCHMARK_MAIN();
