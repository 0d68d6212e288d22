#include <algorithm>
#include <cmath>

#include "kernels/cpu/reference.h"

namespace troupe::kernels::reference {
namespace {

/// Indices of one (query row, head) pair.
struct Pair {
  const Attention& a;
  std::int64_t row, head;

  [[nodiscard]] std::size_t q(std::int64_t d) const {
    return static_cast<std::size_t>((row * a.heads + head) * a.head_dim + d);
  }
  [[nodiscard]] std::size_t kv(std::int64_t key, std::int64_t d) const {
    return static_cast<std::size_t>((key * a.kv_heads + head / (a.heads / a.kv_heads)) * a.head_dim + d);
  }
  [[nodiscard]] std::int64_t visible() const { return a.keys - a.rows + row + 1; }
};

/// Probabilities over the visible keys; *lse = log sum exp of the scores.
Doubles probabilities(const Pair& pair, const Doubles& q, const Doubles& k, double* lse) {
  Doubles p(static_cast<std::size_t>(pair.visible()));
  for (std::size_t t = 0; t < p.size(); ++t) {
    for (std::int64_t d = 0; d < pair.a.head_dim; ++d)
      p[t] += q[pair.q(d)] * k[pair.kv(static_cast<std::int64_t>(t), d)];
    p[t] *= pair.a.scale;
  }
  const double top = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double s : p) sum += std::exp(s - top);
  *lse = top + std::log(sum);
  for (double& s : p) s = std::exp(s - *lse);
  return p;
}

}  // namespace

AttentionOut attention(const Attention& a, const Doubles& q, const Doubles& k, const Doubles& v) {
  AttentionOut result{Doubles(q.size()), Doubles(static_cast<std::size_t>(a.rows * a.heads))};
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t head = 0; head < a.heads; ++head) {
      const Pair pair{a, row, head};
      const Doubles p = probabilities(pair, q, k, &result.lse[static_cast<std::size_t>(row * a.heads + head)]);
      for (std::size_t t = 0; t < p.size(); ++t) {
        for (std::int64_t d = 0; d < a.head_dim; ++d) {
          result.out[pair.q(d)] += p[t] * v[pair.kv(static_cast<std::int64_t>(t), d)];
        }
      }
    }
  }
  return result;
}

AttentionGrad attention_backward(const Attention& a, const Doubles& q, const Doubles& k, const Doubles& v,
                                 const Doubles& dout) {
  AttentionGrad grad{Doubles(q.size()), Doubles(k.size()), Doubles(v.size())};
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t head = 0; head < a.heads; ++head) {
      const Pair pair{a, row, head};
      double lse = 0;
      const Doubles p = probabilities(pair, q, k, &lse);
      Doubles dp(p.size());
      double mean = 0;
      for (std::size_t t = 0; t < p.size(); ++t) {
        const auto key = static_cast<std::int64_t>(t);
        for (std::int64_t d = 0; d < a.head_dim; ++d) {
          dp[t] += dout[pair.q(d)] * v[pair.kv(key, d)];
          grad.dv[pair.kv(key, d)] += p[t] * dout[pair.q(d)];
        }
        mean += p[t] * dp[t];
      }
      for (std::size_t t = 0; t < p.size(); ++t) {
        const auto key = static_cast<std::int64_t>(t);
        const double ds = p[t] * (dp[t] - mean) * a.scale;
        for (std::int64_t d = 0; d < a.head_dim; ++d) {
          grad.dq[pair.q(d)] += ds * k[pair.kv(key, d)];
          grad.dk[pair.kv(key, d)] += ds * q[pair.q(d)];
        }
      }
    }
  }
  return grad;
}

}  // namespace troupe::kernels::reference
