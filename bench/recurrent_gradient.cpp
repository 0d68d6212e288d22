#include "bench/recurrent_gradient.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

namespace troupe::bench {
namespace {

using Floats = std::vector<float>;
constexpr std::int64_t kBlock = 64, kLanes = 16;

struct Row {
  const float *q, *k, *v, *dout;  ///< q and k of unit length, q scaled.
  float factor, beta;
};

/// Of one row: u from the state before it, and the state behind it.
[[gnu::target_clones("avx512f", "avx2", "default")]] void step(const Row& r, std::int64_t dk, std::int64_t dv,
                                                               const float* __restrict before, float* __restrict after,
                                                               float* __restrict u) {
  std::fill_n(u, dv, 0.0F);
  for (std::int64_t i = 0; i < dk; ++i)
    for (std::int64_t d = 0; d < dv; ++d) u[d] += r.factor * before[i * dv + d] * r.k[i];
  for (std::int64_t d = 0; d < dv; ++d) u[d] = r.beta * (r.v[d] - u[d]);
  for (std::int64_t i = 0; i < dk; ++i)
    for (std::int64_t d = 0; d < dv; ++d) after[i * dv + d] = r.factor * before[i * dv + d] + r.k[i] * u[d];
}

struct RowGrad {
  float *dq, *dk, *du;  ///< du: in the end beta du, the value's gradient.
  float dbeta, ddecay;
};

/// Backward through one row. Both dimensions are multiples of 16.
[[gnu::target_clones("avx512f", "avx2", "default")]] void back(const Row& r, std::int64_t dk, std::int64_t dv,
                                                               const float* __restrict before,
                                                               const float* __restrict after, const float* __restrict u,
                                                               float* __restrict dstate, RowGrad& g) {
  float* __restrict du = g.du;
  std::fill_n(du, dv, 0.0F);
  for (std::int64_t i = 0; i < dk; ++i) {
    float sums[kLanes] = {};
    float* __restrict ds = dstate + i * dv;
    const float* __restrict s = after + i * dv;
    for (std::int64_t d = 0; d < dv; d += kLanes)
      for (std::int64_t l = 0; l < kLanes; ++l) {
        sums[l] += s[d + l] * r.dout[d + l];
        ds[d + l] += r.q[i] * r.dout[d + l];
        du[d + l] += ds[d + l] * r.k[i];
      }
    g.dq[i] = 0;
    for (const float sum : sums) g.dq[i] += sum;
  }
  g.dbeta = 0;
  for (std::int64_t d = 0; d < dv; ++d) {
    g.dbeta += r.beta == 0 ? 0 : du[d] * u[d] / r.beta;
    du[d] *= r.beta;
  }
  float decays[kLanes] = {};
  for (std::int64_t i = 0; i < dk; ++i) {
    float sums[kLanes] = {};
    float* __restrict ds = dstate + i * dv;
    const float* __restrict s = before + i * dv;
    for (std::int64_t d = 0; d < dv; d += kLanes)
      for (std::int64_t l = 0; l < kLanes; ++l) {
        sums[l] += ds[d + l] * u[d + l] - r.factor * s[d + l] * du[d + l];
        ds[d + l] = r.factor * (ds[d + l] - r.k[i] * du[d + l]);
        decays[l] += ds[d + l] * s[d + l];
      }
    g.dk[i] = 0;
    for (const float sum : sums) g.dk[i] += sum;
  }
  g.ddecay = 0;
  for (const float sum : decays) g.ddecay += sum;
}

/// One value head.
class Head {
 public:
  Head(const kernels::DeltaRuleGrad& args, std::int64_t head)
      : a_(args),
        head_(head),
        keys_(a_.key_heads * a_.key_dim),
        width_(2 * keys_ + a_.value_heads * a_.value_dim),
        key_(head * a_.key_heads / a_.value_heads * a_.key_dim),
        state_(static_cast<std::size_t>(a_.key_dim * a_.value_dim)) {}

  void run() {
    const std::int64_t blocks = (a_.rows + kBlock - 1) / kBlock;
    Floats borders(static_cast<std::size_t>(blocks) * state_), states((kBlock + 1) * state_), dstate(state_);
    u_.resize(static_cast<std::size_t>(kBlock * a_.value_dim));
    for (std::int64_t block = 0; block + 1 < blocks; ++block) {
      std::copy_n(borders.begin() + block * size(), size(), states.begin());
      forward(block, states);
      std::copy_n(states.begin() + kBlock * size(), size(), borders.begin() + (block + 1) * size());
    }
    for (std::int64_t block = blocks - 1; block >= 0; --block) {
      std::copy_n(borders.begin() + block * size(), size(), states.begin());
      forward(block, states);
      backward(block, states, dstate);
    }
  }

 private:
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(state_); }
  [[nodiscard]] std::int64_t rows_of(std::int64_t block) const { return std::min(kBlock, a_.rows - block * kBlock); }
  static float unit(const float* x, std::int64_t n, float factor, Floats& y) {
    float sum = 1e-6F;
    for (std::int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
    y.resize(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) y[static_cast<std::size_t>(i)] = x[i] * factor / std::sqrt(sum);
    return 1 / std::sqrt(sum);
  }
  Row row(std::int64_t t) {
    const float* x = a_.qkv + t * width_;
    q_inverse_ = unit(x + key_, a_.key_dim, 1 / std::sqrt(static_cast<float>(a_.key_dim)), q_);
    k_inverse_ = unit(x + keys_ + key_, a_.key_dim, 1, k_);
    return {q_.data(),
            k_.data(),
            x + 2 * keys_ + head_ * a_.value_dim,
            a_.dout + (t * a_.value_heads + head_) * a_.value_dim,
            std::exp(a_.decay[t * a_.value_heads + head_]),
            a_.beta[t * a_.value_heads + head_]};
  }
  void forward(std::int64_t block, Floats& states) {
    for (std::int64_t i = 0; i < rows_of(block); ++i)
      step(row(block * kBlock + i), a_.key_dim, a_.value_dim, states.data() + i * size(), states.data() + (i + 1) * size(),
           u_.data() + i * a_.value_dim);
  }
  void backward(std::int64_t block, const Floats& states, Floats& dstate) {
    Floats dq(static_cast<std::size_t>(a_.key_dim)), dk(dq.size()), du(static_cast<std::size_t>(a_.value_dim));
    for (std::int64_t i = rows_of(block) - 1; i >= 0; --i) {
      const std::int64_t t = block * kBlock + i;
      RowGrad g{dq.data(), dk.data(), du.data(), 0, 0};
      back(row(t), a_.key_dim, a_.value_dim, states.data() + i * size(), states.data() + (i + 1) * size(),
           u_.data() + i * a_.value_dim, dstate.data(), g);
      float* dx = a_.dqkv + t * width_;
      const float scale = 1 / std::sqrt(static_cast<float>(a_.key_dim));
      through_unit(q_, dq, q_inverse_, scale, dx + key_);
      through_unit(k_, dk, k_inverse_, 1, dx + keys_ + key_);
      std::copy(du.begin(), du.end(), dx + 2 * keys_ + head_ * a_.value_dim);
      a_.dbeta[t * a_.value_heads + head_] = g.dbeta;
      a_.ddecay[t * a_.value_heads + head_] = g.ddecay;
    }
  }
  static void through_unit(const Floats& y, const Floats& dy, float inverse, float factor, float* dx) {
    float dot = 0;
    for (std::size_t i = 0; i < y.size(); ++i) dot += y[i] * dy[i];
    for (std::size_t i = 0; i < y.size(); ++i)
      dx[i] += inverse * (factor * dy[i] - y[i] * dot / factor);
  }

  const kernels::DeltaRuleGrad& a_;
  std::int64_t head_, keys_, width_, key_;
  std::size_t state_;
  Floats q_, k_, u_;
  float q_inverse_ = 0, k_inverse_ = 0;
};

}  // namespace

void recurrent_gradient(const kernels::DeltaRuleGrad& args, int threads) {
  std::fill_n(args.dqkv, args.rows * (2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim), 0.0F);
  std::atomic<std::int64_t> next{0};
  std::vector<std::jthread> team;
  for (int i = 0; i < threads; ++i)
    team.emplace_back([&] {
      const std::int64_t group = args.value_heads / args.key_heads;
      for (std::int64_t key_head = next++; key_head < args.key_heads; key_head = next++)
        for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) Head(args, head).run();
    });
}

}  // namespace troupe::bench
