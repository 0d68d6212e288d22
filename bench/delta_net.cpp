// delta_net: Gated DeltaNet over one sequence, forward and backward: in chunks beside the recurrent form.
#include <algorithm>
#include <functional>
#include <string>

#include "bench/recurrent_gradient.h"
#include "bench/registry.h"
#include "bench/roofline.h"
#include "kernels/delta_net.h"
#include "kernels/isa.h"

namespace troupe::bench {
namespace {

namespace k = kernels;
using Call = std::function<void()>;
using Floats = std::vector<float>;

constexpr std::int64_t kKeyHeads = 8, kValueHeads = 16, kDim = 128;
constexpr double kState = static_cast<double>(kDim * kDim);
// Operations per row and value head, a multiply-add counting 2; in chunks of C, a triangle counting half.
constexpr double kRecurrent = 7 * kState;
constexpr double kChunked = 6 * kState + 5.0 * k::kDeltaChunk * kDim;
constexpr double kBackward = 4 * kState + 3.0 * k::kDeltaChunk * kDim + 16 * kState + 14.0 * k::kDeltaChunk * kDim;

Floats numbers(std::int64_t n, float low, float high) {
  Floats x(static_cast<std::size_t>(n));
  std::uint32_t state = 1;
  for (float& v : x)
    v = low + (high - low) * static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) / 16777216.0f;
  return x;
}

/// One sequence, its results and gradients.
struct Sequence {
  explicit Sequence(std::int64_t n)
      : qkv(numbers(n * (2 * kKeyHeads + kValueHeads) * kDim, -1, 1)),
        decay(numbers(n * kValueHeads, -0.2F, 0)),
        beta(numbers(n * kValueHeads, 0, 1)),
        dout(numbers(n * kValueHeads * kDim, -1, 1)),
        out(dout.size()),
        state(static_cast<std::size_t>(kValueHeads * kDim * kDim)),
        dqkv(qkv.size()),
        ddecay(decay.size()),
        dbeta(beta.size()),
        rule{qkv.data(), decay.data(), beta.data(), out.data(), state.data(), n, kKeyHeads, kValueHeads, kDim, kDim} {
    grad.qkv = qkv.data(), grad.decay = decay.data(), grad.beta = beta.data(), grad.dout = dout.data();
    grad.dqkv = dqkv.data(), grad.ddecay = ddecay.data(), grad.dbeta = dbeta.data();
    grad.rows = n, grad.key_heads = kKeyHeads, grad.value_heads = kValueHeads, grad.key_dim = grad.value_dim = kDim;
  }
  Sequence(const Sequence&) = delete;
  void forget() { std::ranges::fill(state, 0.0F); }
  void recurrent() { forget(), k::delta_rule(rule); }
  void chunked() { forget(), k::delta_rule_chunked(&rule, 1); }
  void backward() { k::delta_rule_backward(&grad, 1); }

  Floats qkv, decay, beta, dout, out, state, dqkv, ddecay, dbeta;
  k::DeltaRule rule;
  k::DeltaRuleGrad grad;
};

double seconds_of(const Call& call) {
  const Stopwatch watch;
  call();
  return watch.seconds();
}

}  // namespace

Status run_delta_net(Context& context) {
  TROUPE_TRY_STATUS(k::check_cpu());
  k::set_max_threads(context.threads());
  const int repeats = context.repeats(3);
  const Peer roof{"FMA in registers", peak_gflops(context.threads())};
  for (const std::int64_t n : {1024, 2048, 4096, 8192}) {
    Sequence s(n);
    std::vector<double> recurrent, chunked, backward, recurrent_backward;
    s.chunked(), s.backward();
    for (int i = 0; i < repeats; ++i) {  // in turn
      recurrent.push_back(seconds_of([&] { s.recurrent(); }));
      recurrent_backward.push_back(seconds_of([&] { recurrent_gradient(s.grad, context.threads()); }));
      chunked.push_back(seconds_of([&] { s.chunked(); }));
      backward.push_back(seconds_of([&] { s.backward(); }));
    }
    const nlohmann::json conditions = {{"shape", std::to_string(n) + " rows, heads 8/16 x 128"},
                                       {"dtype", "float32"},
                                       {"threads", context.threads()},
                                       {"repeats", repeats}};
    const auto row = [&](const char* what, double value, const char* unit, std::optional<Peer> peer) {
      context.add({"delta_net." + std::string(what) + "." + std::to_string(n), value, unit, std::move(peer), conditions});
    };
    const double rows = static_cast<double>(n), heads = static_cast<double>(n * kValueHeads) * 1e-9;
    const double f = median(recurrent), b = median(recurrent_backward), cf = median(chunked), cb = median(backward);
    row("chunked", rows / (cf + cb), "tok/s", Peer{"recurrent form, forward + backward", rows / (f + b)});
    row("training", rows / (f + cb), "tok/s", Peer{"recurrent form, forward + backward", rows / (f + b)});
    row("recurrent_forward", heads * kRecurrent / f, "GFLOP/s", roof);
    row("chunked_forward", heads * kChunked / cf, "GFLOP/s", roof);
    row("backward", heads * kBackward / cb, "GFLOP/s", roof);
  }
  return {};
}

}  // namespace troupe::bench
