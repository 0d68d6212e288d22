// kernels: rates of the CPU kernels against what the machine can do at most, in the shapes of the quickstart and of
// SmolLM2-135M.
#include <chrono>
#include <functional>
#include <string>

#include "bench/registry.h"
#include "bench/roofline.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "kernels/isa.h"
#include "kernels/logprob.h"
#include "kernels/rmsnorm.h"

namespace troupe::bench {
namespace {

namespace k = kernels;
using Clock = std::chrono::steady_clock;
using Floats = std::vector<float>;

constexpr double kSample = 0.05;  // seconds that one sample of a kernel takes at least

Floats numbers(std::int64_t n) {
  Floats x(static_cast<std::size_t>(n));
  std::uint32_t state = 1;
  for (float& v : x) v = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f;
  return x;
}

/// A decoder's sizes, as far as its kernels see them.
struct Sizes {
  const char* model;
  std::int64_t width, heads, kv_heads, head_dim, ffn, vocab;
};
constexpr Sizes kModels[] = {{"quickstart", 128, 4, 2, 32, 384, 16}, {"smollm2", 576, 9, 3, 64, 1536, 49152}};

class Bench {
 public:
  explicit Bench(Context& context) : context_(context), repeats_(context.repeats(5)), threads_(context.threads()) {
    compute_ = {"FMA in registers", peak_gflops(threads_)};
    memory_ = {"triad", peak_bandwidth(threads_)};
  }
  void compute(const std::string& name, const std::string& shape, double operations,
               const std::function<void()>& call) {
    add(name, shape, operations, "GFLOP/s", compute_, call);
  }
  void memory(const std::string& name, const std::string& shape, double bytes, const std::function<void()>& call) {
    add(name, shape, bytes, "GB/s", memory_, call);
  }

 private:
  void add(const std::string& name, const std::string& shape, double work, const char* unit, const Peer& roof,
           const std::function<void()>& call) {
    call();
    std::vector<double> rates;
    for (int i = 0; i < repeats_; ++i) {
      int calls = 0;
      const auto start = Clock::now();
      double took = 0;
      do call(), ++calls, took = std::chrono::duration<double>(Clock::now() - start).count();
      while (took < kSample);
      rates.push_back(work * calls / took * 1e-9);
    }
    context_.add({"kernels." + name,
                  median(std::move(rates)),
                  unit,
                  roof,
                  {{"shape", shape}, {"dtype", "float32"}, {"threads", threads_}, {"repeats", repeats_}}});
  }

  Context& context_;
  int repeats_;
  int threads_;
  Peer compute_, memory_;
};

void gemm(Bench& bench, const Sizes& s, const char* what, std::int64_t n, std::int64_t kk) {
  const Floats w = numbers(n * kk);
  k::PackedMatrix packed;
  packed.pack(w.data(), n, kk);
  for (const std::int64_t m : {1, 16, 512}) {
    const Floats x = numbers(m * kk);
    Floats y(static_cast<std::size_t>(m * n));
    const std::string shape = std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(kk);
    bench.compute(std::string("gemm.") + s.model + "." + what + ".rows" + std::to_string(m), shape,
                  2.0 * static_cast<double>(m * n * kk), [&] { k::matmul(x.data(), m, packed, y.data()); });
  }
}

// One token each of 16 sequences, over pages; or one whole prompt.
void attention(Bench& bench, const Sizes& s, std::int64_t sequences, std::int64_t rows, std::int64_t keys) {
  const k::AttentionShape shape{s.heads, s.kv_heads, s.head_dim, 0};
  const std::int64_t capacity = 16, q_row = s.heads * s.head_dim, kv_row = s.kv_heads * s.head_dim;
  const Floats q = numbers(sequences * rows * q_row), kv = numbers(keys * kv_row);
  Floats out(q.size());
  std::vector<Floats> pages;
  std::vector<std::vector<k::KeySpan>> spans(static_cast<std::size_t>(sequences));
  std::vector<k::AttentionSegment> segments;
  for (std::int64_t i = 0; i < sequences; ++i) {
    auto& list = spans[static_cast<std::size_t>(i)];
    if (rows > 1) {
      list.push_back({kv.data(), kv.data(), keys, kv_row, k::KvLayout::kRows});
    } else {
      for (std::int64_t t = 0; t < keys; t += capacity) {
        pages.push_back(numbers(k::kv_page_floats(shape, capacity)));
        list.push_back({pages.back().data(), pages.back().data(), capacity, capacity, k::KvLayout::kPages});
      }
    }
    segments.push_back({q.data() + i * rows * q_row, out.data() + i * rows * q_row, nullptr, rows, 0, 0, list.data(),
                        static_cast<std::int64_t>(list.size())});
  }
  const double visible = static_cast<double>(keys) - static_cast<double>(rows - 1) / 2;
  const double operations = 4.0 * static_cast<double>(sequences * rows * q_row) * visible;
  bench.compute(
      std::string("attention.") + s.model + (rows > 1 ? ".prefill" : ".decode"),
      std::to_string(sequences) + " x " + std::to_string(rows) + " queries, " + std::to_string(keys) + " keys",
      operations, [&] { k::attention_forward(shape, segments.data(), sequences); });
}

void rmsnorm(Bench& bench, const Sizes& s) {
  const std::int64_t rows = 512;
  const Floats x = numbers(rows * s.width), weight = numbers(s.width);
  Floats y(x.size());
  k::RmsNormForward args;
  args.x = x.data(), args.weight = weight.data(), args.y = y.data(), args.rows = rows, args.cols = s.width;
  bench.memory(std::string("rmsnorm.") + s.model, std::to_string(rows) + " x " + std::to_string(s.width),
               8.0 * static_cast<double>(rows * s.width), [&] { k::rmsnorm_forward(args); });
}

void logprob(Bench& bench, const Sizes& s) {
  const std::int64_t rows = 64;
  const Floats logits = numbers(rows * s.vocab);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(rows), 3);
  Floats out(static_cast<std::size_t>(rows)), entropy(static_cast<std::size_t>(rows));
  k::LogprobForward args;
  args.logits = logits.data(), args.targets = targets.data(), args.logprob = out.data(), args.entropy = entropy.data();
  args.rows = rows, args.vocab = s.vocab;
  bench.memory(std::string("logprob.") + s.model, std::to_string(rows) + " x " + std::to_string(s.vocab),
               4.0 * static_cast<double>(rows * s.vocab), [&] { k::logprob_forward(args); });
}

void adamw(Bench& bench, std::int64_t n) {
  Floats param = numbers(n), grad = numbers(n), m(static_cast<std::size_t>(n)), v(static_cast<std::size_t>(n));
  k::AdamW args;
  args.param = param.data(), args.grad = grad.data(), args.m = m.data(), args.v = v.data(), args.n = n, args.lr = 1e-4;
  bench.memory("adamw", std::to_string(n) + " parameters", 28.0 * static_cast<double>(n), [&] { k::adamw_step(args); });
}

}  // namespace

Status run_kernels(Context& context) {
  TROUPE_TRY_STATUS(k::check_cpu());
  k::set_max_threads(context.threads());
  Bench bench(context);
  for (const Sizes& s : kModels) {
    gemm(bench, s, "qkv", (s.heads + 2 * s.kv_heads) * s.head_dim, s.width);
    gemm(bench, s, "gate_up", 2 * s.ffn, s.width);
    gemm(bench, s, "down", s.width, s.ffn);
  }
  gemm(bench, kModels[1], "head", kModels[1].vocab, kModels[1].width);
  for (const Sizes& s : kModels) {
    attention(bench, s, 16, 1, s.width == 128 ? 16 : 512);
    attention(bench, s, 1, s.width == 128 ? 16 : 512, s.width == 128 ? 16 : 512);
    rmsnorm(bench, s);
    logprob(bench, s);
  }
  adamw(bench, std::int64_t{8} << 20);
  return {};
}

}  // namespace troupe::bench
