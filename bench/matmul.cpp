// matmul: our products beside LibTorch's in the same process, attention too, and what order and packing cost.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstring>
#include <functional>
#include <string>

#include "bench/registry.h"
#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "kernels/isa.h"

namespace troupe::bench {
namespace {

namespace k = kernels;
using Call = std::function<void()>;

constexpr double kSample = 0.02;  // seconds that one sample takes at least

struct Shape {
  std::int64_t m, n, k;
  [[nodiscard]] double operations() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n * k); }
  [[nodiscard]] std::string text() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  }
};
constexpr Shape kLarge[] = {{512, 512, 512}, {1024, 1024, 1024}, {2048, 2048, 2048}, {512, 4096, 4096},
                            {512, 576, 576}, {512, 1536, 576},   {4096, 512, 512},   {700, 1600, 992}};
constexpr Shape kSmall[] = {{0, 576, 576}, {0, 1536, 576}, {0, 49152, 576}, {0, 2048, 2048}, {0, 4096, 1024}};

double seconds_of(const Call& call) {
  int calls = 0;
  const Stopwatch watch;
  do call(), ++calls;
  while (watch.seconds() < kSample);
  return watch.seconds() / calls;
}

class Bench {
 public:
  explicit Bench(Context& context) : context_(context), repeats_(context.repeats(9)) {}

  /// Rates of both, measured in turn.
  void compare(const std::string& name, k::Precision precision, const std::string& shape, double work, const char* unit,
               const Call& own, const char* peer, const Call& other) {
    own(), other();
    std::vector<double> ours, theirs;
    for (int i = 0; i < repeats_; ++i) {
      ours.push_back(work / seconds_of(own) * 1e-9);
      theirs.push_back(work / seconds_of(other) * 1e-9);
    }
    context_.add(
        {"matmul." + name + "." + dtype(precision),
         median(std::move(ours)),
         unit,
         Peer{peer, median(std::move(theirs))},
         {{"shape", shape}, {"dtype", dtype(precision)}, {"threads", context_.threads()}, {"repeats", repeats_}}});
  }
  static std::string dtype(k::Precision precision) {
    return precision == k::Precision::kFloat32 ? "float32" : "bfloat16";
  }

 private:
  Context& context_;
  int repeats_;
};

/// Operands of one product, ours and LibTorch's.
struct Operands {
  Operands(const Shape& s, k::Precision p)
      : shape(s),
        precision(p),
        x(at::randn({s.m, s.k})),
        w(at::randn({s.n, s.k})),
        y(at::empty({s.m, s.n})),
        their_x(x),
        their_w(w) {
    if (p == k::Precision::kBfloat16) their_x = x.to(at::kBFloat16), their_w = w.to(at::kBFloat16);
    pack();
  }
  void pack() { packed.pack(w.data_ptr<float>(), shape.n, shape.k, 0, precision); }
  void ours(int chains = 4) { k::matmul(x.data_ptr<float>(), shape.m, packed, y.data_ptr<float>(), 0, 0, chains); }
  void theirs() { result = at::matmul(their_x, their_w.t()); }

  Shape shape;
  k::Precision precision;
  at::Tensor x, w, y, their_x, their_w, result;
  k::PackedMatrix packed;
};

void products(Bench& bench, k::Precision precision) {
  for (const Shape& s : kLarge) {
    Operands o(s, precision);
    bench.compare(
        "packed", precision, s.text(), s.operations(), "GFLOP/s", [&] { o.ours(); }, "at::matmul", [&] { o.theirs(); });
    bench.compare(
        "packing", precision, s.text(), s.operations(), "GFLOP/s", [&] { o.pack(), o.ours(); }, "at::matmul",
        [&] { o.theirs(); });
    bench.compare(
        "four_chains", precision, s.text(), s.operations(), "GFLOP/s", [&] { o.ours(); }, "one chain",
        [&] { o.ours(1); });
  }
  for (Shape s : kSmall) {
    for (const std::int64_t m : {1, 4, 16}) {
      s.m = m;
      Operands o(s, precision);
      bench.compare(
          "few_rows", precision, s.text(), s.operations(), "GFLOP/s", [&] { o.ours(); }, "at::matmul",
          [&] { o.theirs(); });
    }
  }
}

/// The backward products of linear layers.
void gradients(Bench& bench, k::Precision precision) {
  for (const Shape& s : {Shape{4096, 1536, 256}, {4096, 256, 768}, {4096, 512, 256}}) {
    Operands o(s, precision);
    const at::Tensor dy = at::randn({s.m, s.n}), their_dy = dy.to(o.their_x.scalar_type());
    const at::Tensor dw = at::empty({s.n, s.k}), dx = at::empty({s.m, s.k});
    k::PackedMatrix turned;
    const k::PackedMatrix::Part part{o.w.data_ptr<float>(), s.n};
    turned.pack_transposed(&part, 1, s.k, precision);
    bench.compare(
        "dx", precision, s.text(), s.operations(), "GFLOP/s",
        [&] { k::matmul(dy.data_ptr<float>(), s.m, turned, dx.data_ptr<float>()); }, "at::matmul",
        [&] { o.result = at::matmul(their_dy, o.their_w); });
    bench.compare(
        "dw", precision, s.text(), s.operations(), "GFLOP/s",
        [&] {
          k::weight_gradient({dy.data_ptr<float>(), o.x.data_ptr<float>(), dw.data_ptr<float>(), s.m, s.n, s.k, 0, 0,
                              false, precision});
        },
        "at::matmul", [&] { o.result = at::matmul(their_dy.t(), o.their_x); });
  }
}

/// Causal attention over 8 packed sequences of 512 tokens, 4 query and 2 key heads of 64.
void attention(Bench& bench, k::Precision precision) {
  constexpr std::int64_t kSequences = 8, kTokens = 512, kHeads = 4, kKvHeads = 2, kDim = 64;
  const at::Tensor q = at::randn({kSequences, kTokens, kHeads, kDim});
  const at::Tensor keys = at::randn({kSequences, kTokens, kKvHeads, kDim});
  const at::Tensor v = at::randn_like(keys), out = at::empty_like(q);
  const k::AttentionShape shape{kHeads, kKvHeads, kDim, 0, precision};
  const auto type = precision == k::Precision::kBfloat16 ? at::kBFloat16 : at::kFloat;
  const at::Tensor their_q = q.to(type), their_keys = keys.to(type), their_v = v.to(type);
  std::vector<k::KeySpan> spans;
  std::vector<k::AttentionSegment> segments;
  for (std::int64_t i = 0; i < kSequences; ++i)
    spans.push_back({keys[i].data_ptr<float>(), v[i].data_ptr<float>(), kTokens, kKvHeads * kDim, k::KvLayout::kRows});
  for (std::int64_t i = 0; i < kSequences; ++i)
    segments.push_back({q[i].data_ptr<float>(), out[i].data_ptr<float>(), nullptr, kTokens, 0, 0,
                        &spans[static_cast<std::size_t>(i)], 1});
  at::Tensor result;
  const double operations = 4.0 * kSequences * kHeads * kDim * kTokens * (kTokens + 1) / 2;
  bench.compare(
      "attention", precision, "8x512, heads 4/2 x 64, causal", operations, "GFLOP/s",
      [&] { k::attention_forward(shape, segments.data(), kSequences); }, "scaled_dot_product_attention",
      [&] {
        result = at::scaled_dot_product_attention(their_q.transpose(1, 2), their_keys.transpose(1, 2),
                                                  their_v.transpose(1, 2), {}, 0, true, std::nullopt, true);
      });
}

/// 135 M weights, from their float32 masters, against a copy of them in the packed type.
void repacking(Bench& bench, k::Precision precision) {
  constexpr std::int64_t kMatrices = 24, kRows = 4096, kCols = 1376;
  const at::Tensor w = at::randn({kMatrices, kRows, kCols});
  std::vector<k::PackedMatrix> packed(kMatrices);
  const bool narrow = precision == k::Precision::kBfloat16;
  const at::Tensor from = w.to(narrow ? at::kBFloat16 : at::kFloat), to = at::empty_like(from);
  bench.compare(
      "repack", precision, "135 M weights", static_cast<double>(w.numel()), "G weights/s",
      [&] {
        for (std::int64_t i = 0; i < kMatrices; ++i)
          packed[static_cast<std::size_t>(i)].pack(w.data_ptr<float>() + i * kRows * kCols, kRows, kCols, 0, precision);
      },
      "copy_", [&] { to.copy_(from); });
}

}  // namespace

Status run_matmul(Context& context) {
  TROUPE_TRY_STATUS(k::check_cpu());
  at::set_num_threads(context.threads());
  Bench bench(context);
  for (const k::Precision precision : {k::Precision::kFloat32, k::Precision::kBfloat16}) {
    products(bench, precision);
    gradients(bench, precision);
    repacking(bench, precision);
    attention(bench, precision);
  }
  return {};
}

}  // namespace troupe::bench
