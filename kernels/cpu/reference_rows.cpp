#include <algorithm>
#include <cmath>

#include "kernels/cpu/reference.h"

namespace troupe::kernels::reference {

Norm rmsnorm(const Doubles& x, const Doubles& weight, double eps) {
  const std::size_t cols = weight.size();
  Norm norm{Doubles(x.size()), Doubles(x.size() / cols)};
  for (std::size_t row = 0; row < norm.inv_rms.size(); ++row) {
    double squares = 0;
    for (std::size_t c = 0; c < cols; ++c) squares += x[row * cols + c] * x[row * cols + c];
    norm.inv_rms[row] = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (std::size_t c = 0; c < cols; ++c) norm.y[row * cols + c] = x[row * cols + c] * norm.inv_rms[row] * weight[c];
  }
  return norm;
}

NormGrad rmsnorm_backward(const Doubles& x, const Doubles& weight, const Doubles& dy, double eps) {
  const std::size_t cols = weight.size();
  const Norm norm = rmsnorm(x, weight, eps);
  NormGrad grad{Doubles(x.size()), Doubles(cols)};
  for (std::size_t row = 0; row < norm.inv_rms.size(); ++row) {
    const double s = norm.inv_rms[row];
    double dot = 0;
    for (std::size_t c = 0; c < cols; ++c) dot += weight[c] * dy[row * cols + c] * x[row * cols + c];
    for (std::size_t c = 0; c < cols; ++c) {
      const std::size_t i = row * cols + c;
      grad.dx[i] = s * weight[c] * dy[i] - x[i] * s * s * s * dot / static_cast<double>(cols);
      grad.dweight[c] += dy[i] * x[i] * s;
    }
  }
  return grad;
}

Doubles rope(const Doubles& x, const Doubles& cos, const Doubles& sin, std::int64_t heads, std::int64_t head_dim,
             std::int64_t rotary, bool inverse) {
  Doubles y = x;
  const auto half = static_cast<std::size_t>(rotary / 2);
  const auto dim = static_cast<std::size_t>(head_dim);
  for (std::size_t head = 0; head * dim < x.size(); ++head) {
    const std::size_t row = head / static_cast<std::size_t>(heads);
    for (std::size_t i = 0; i < half; ++i) {
      const double c = cos[row * half + i];
      const double s = inverse ? -sin[row * half + i] : sin[row * half + i];
      const double a = x[head * dim + i];
      const double b = x[head * dim + half + i];
      y[head * dim + i] = a * c - b * s;
      y[head * dim + half + i] = b * c + a * s;
    }
  }
  return y;
}

Doubles swiglu(const Doubles& gate, const Doubles& up) {
  Doubles y(gate.size());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  return y;
}

SwigluGrad swiglu_backward(const Doubles& gate, const Doubles& up, const Doubles& dy) {
  SwigluGrad grad{Doubles(gate.size()), Doubles(gate.size())};
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double s = 1 / (1 + std::exp(-gate[i]));
    grad.dup[i] = dy[i] * gate[i] * s;
    grad.dgate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
  }
  return grad;
}

Logprob logprob(const Doubles& logits, std::int64_t target, double temperature) {
  const double top = *std::max_element(logits.begin(), logits.end()) / temperature;
  double sum = 0;
  for (double x : logits) sum += std::exp(x / temperature - top);
  const double lse = top + std::log(sum);
  double entropy = 0;
  for (double x : logits) {
    const double log_p = x / temperature - lse;
    if (std::isfinite(log_p)) entropy -= std::exp(log_p) * log_p;
  }
  return {logits[static_cast<std::size_t>(target)] / temperature - lse, entropy, lse};
}

Doubles logprob_backward(const Doubles& logits, std::int64_t target, double temperature, double dlogprob,
                         double dentropy) {
  const Logprob row = logprob(logits, target, temperature);
  Doubles grad(logits.size());
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double log_p = logits[i] / temperature - row.lse;
    const double p = std::exp(log_p);
    const double hit = static_cast<std::int64_t>(i) == target ? 1 : 0;
    grad[i] = (dlogprob * (hit - p) - dentropy * p * (log_p + row.entropy)) / temperature;
  }
  return grad;
}

Sample sample(const Doubles& logits, double temperature, double uniform) {
  const double lse = logprob(logits, 0, temperature).lse;
  Sample result{{}, -1};
  double sum = 0;
  for (double x : logits) {
    sum += std::exp(x / temperature - lse);
    if (result.id < 0 && sum > uniform) result.id = static_cast<std::int64_t>(result.cumulative.size());
    result.cumulative.push_back(sum);
  }
  return result;
}

AdamWState adamw(AdamWState state, double grad, double lr, double beta1, double beta2, double eps, double weight_decay,
                 std::int64_t step) {
  const auto t = static_cast<double>(step);
  state.m = beta1 * state.m + (1 - beta1) * grad;
  state.v = beta2 * state.v + (1 - beta2) * grad * grad;
  const double m_hat = state.m / (1 - std::pow(beta1, t));
  const double v_hat = state.v / (1 - std::pow(beta2, t));
  state.param = state.param * (1 - lr * weight_decay) - lr * m_hat / (std::sqrt(v_hat) + eps);
  return state;
}

}  // namespace troupe::kernels::reference
