#include <algorithm>
#include <cmath>

#include "kernels/cpu/reference.h"

namespace troupe::kernels::reference {

namespace {

Doubles unit(const Doubles& x, std::size_t first, std::size_t n) {
  double sum = 1e-6;
  for (std::size_t i = first; i < first + n; ++i) sum += x[i] * x[i];
  Doubles y(n);
  for (std::size_t i = 0; i < n; ++i) y[i] = x[first + i] / std::sqrt(sum);
  return y;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

namespace {

/// What a query gives to each key, and last to the sink.
Doubles probabilities(const Doubles& q, const Doubles& keys, double scale, double sink) {
  Doubles p(keys.size() / q.size());
  double most = sink;
  for (std::size_t i = 0; i < p.size(); ++i) {
    for (std::size_t d = 0; d < q.size(); ++d) p[i] += scale * q[d] * keys[i * q.size() + d];
    most = std::max(most, p[i]);
  }
  p.push_back(sink);
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - most);
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace

Doubles attend(const Doubles& q, const Doubles& keys, const Doubles& values, double scale, double sink) {
  const Doubles p = probabilities(q, keys, scale, sink);
  const std::size_t n = p.size() - 1, width = values.size() / n;
  Doubles out(width);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t d = 0; d < width; ++d) out[d] += p[i] * values[i * width + d];
  return out;
}

AttendGrad attend_backward(const Doubles& q, const Doubles& keys, const Doubles& values, double scale, double sink,
                           const Doubles& dout) {
  const Doubles p = probabilities(q, keys, scale, sink);
  const std::size_t n = p.size() - 1, width = dout.size();
  Doubles dp(n);
  double delta = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t d = 0; d < width; ++d) dp[i] += dout[d] * values[i * width + d];
    delta += p[i] * dp[i];
  }
  AttendGrad g{Doubles(q.size()), Doubles(keys.size()), Doubles(values.size()), -p[n] * delta};
  for (std::size_t i = 0; i < n; ++i) {
    const double ds = scale * p[i] * (dp[i] - delta);
    for (std::size_t d = 0; d < q.size(); ++d) {
      g.dq[d] += ds * keys[i * q.size() + d];
      g.dkeys[i * q.size() + d] += ds * q[d];
    }
    for (std::size_t d = 0; d < width; ++d) g.dvalues[i * width + d] += p[i] * dout[d];
  }
  return g;
}

namespace {

/// The convolution of rows that stand behind their history.
struct Conv {
  Doubles rows;
  std::size_t channels, taps;
  Conv(const Doubles& x, const Doubles& history, std::int64_t c, std::int64_t n)
      : rows(history), channels(static_cast<std::size_t>(c)), taps(static_cast<std::size_t>(n)) {
    rows.insert(rows.end(), x.begin(), x.end());
  }
  [[nodiscard]] double sum(const Doubles& weight, std::size_t t, std::size_t c) const {
    double s = 0;
    for (std::size_t j = 0; j < taps; ++j) s += weight[c * taps + j] * rows[(t + j) * channels + c];
    return s;
  }
};

}  // namespace

Doubles causal_conv(const Doubles& x, const Doubles& history, const Doubles& weight, std::int64_t channels,
                    std::int64_t taps) {
  const Conv conv(x, history, channels, taps);
  Doubles y(x.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double s = conv.sum(weight, i / conv.channels, i % conv.channels);
    y[i] = s * sigmoid(s);
  }
  return y;
}

ConvGrad causal_conv_backward(const Doubles& x, const Doubles& history, const Doubles& weight, const Doubles& dy,
                              std::int64_t channels, std::int64_t taps) {
  const Conv conv(x, history, channels, taps);
  Doubles drows(conv.rows.size());
  ConvGrad g{{}, {}, Doubles(weight.size())};
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const std::size_t t = i / conv.channels, c = i % conv.channels;
    const double s = conv.sum(weight, t, c), gate = sigmoid(s);
    const double ds = dy[i] * gate * (1 + s * (1 - gate));
    for (std::size_t j = 0; j < conv.taps; ++j) {
      drows[(t + j) * conv.channels + c] += ds * weight[c * conv.taps + j];
      g.dweight[c * conv.taps + j] += ds * conv.rows[(t + j) * conv.channels + c];
    }
  }
  const auto border = drows.begin() + static_cast<std::ptrdiff_t>(history.size());
  g.dhistory.assign(drows.begin(), border);
  g.dx.assign(border, drows.end());
  return g;
}

Doubles delta_rule(const Doubles& q, const Doubles& k, const Doubles& v, const Doubles& decay, const Doubles& beta,
                   std::int64_t dk, std::int64_t dv, Doubles& state) {
  const auto keys = static_cast<std::size_t>(dk);
  const auto values = static_cast<std::size_t>(dv);
  Doubles out(v.size());
  for (std::size_t t = 0; t < beta.size(); ++t) {
    const Doubles key = unit(k, t * keys, keys);
    const Doubles query = unit(q, t * keys, keys);
    for (double& s : state) s *= std::exp(decay[t]);
    for (std::size_t d = 0; d < values; ++d) {
      double known = 0;
      for (std::size_t i = 0; i < keys; ++i) known += state[i * values + d] * key[i];
      const double news = beta[t] * (v[t * values + d] - known);
      for (std::size_t i = 0; i < keys; ++i) {
        state[i * values + d] += key[i] * news;
        out[t * values + d] += state[i * values + d] * query[i] / std::sqrt(static_cast<double>(dk));
      }
    }
  }
  return out;
}

DeltaGrad delta_rule_backward(const Doubles& q, const Doubles& k, const Doubles& v, const Doubles& decay, const Doubles& beta,
                              const Doubles& dout, std::int64_t dk, std::int64_t dv, const Doubles& state, Doubles& dstate) {
  const auto keys = static_cast<std::size_t>(dk);
  const auto values = static_cast<std::size_t>(dv);
  const double scale = 1 / std::sqrt(static_cast<double>(dk));
  std::vector<Doubles> before{state};  // every row's
  for (std::size_t t = 0; t < beta.size(); ++t) {
    Doubles next = before.back();
    const auto row = [t](const Doubles& x, std::size_t n) {
      return Doubles(x.begin() + static_cast<std::ptrdiff_t>(t * n), x.begin() + static_cast<std::ptrdiff_t>((t + 1) * n));
    };
    (void)delta_rule(row(q, keys), row(k, keys), row(v, values), row(decay, 1), row(beta, 1), dk, dv, next);
    before.push_back(std::move(next));
  }
  DeltaGrad g{Doubles(q.size()), Doubles(k.size()), Doubles(v.size()), Doubles(beta.size()), Doubles(beta.size())};
  const auto through_unit = [keys](const Doubles& x, const Doubles& y, const Doubles& dy, std::size_t t, Doubles& dx) {
    double squares = 1e-6, dot = 0;
    for (std::size_t i = 0; i < keys; ++i) squares += x[t * keys + i] * x[t * keys + i], dot += y[i] * dy[i];
    for (std::size_t i = 0; i < keys; ++i) dx[t * keys + i] = (dy[i] - y[i] * dot) / std::sqrt(squares);
  };
  for (std::size_t t = beta.size(); t-- > 0;) {
    const Doubles key = unit(k, t * keys, keys), query = unit(q, t * keys, keys);
    const double factor = std::exp(decay[t]);
    Doubles dkey(keys), dquery(keys);
    for (std::size_t d = 0; d < values; ++d) {
      double known = 0, du = 0;
      for (std::size_t i = 0; i < keys; ++i) {
        known += factor * before[t][i * values + d] * key[i];
        dquery[i] += scale * before[t + 1][i * values + d] * dout[t * values + d];
        dstate[i * values + d] += scale * query[i] * dout[t * values + d];
        du += dstate[i * values + d] * key[i];
      }
      const double u = beta[t] * (v[t * values + d] - known);
      g.dv[t * values + d] = beta[t] * du;
      g.dbeta[t] += du * (v[t * values + d] - known);
      for (std::size_t i = 0; i < keys; ++i) {
        double& ds = dstate[i * values + d];
        dkey[i] += ds * u - beta[t] * du * factor * before[t][i * values + d];
        ds = (ds - beta[t] * du * key[i]) * factor;
        g.ddecay[t] += ds * before[t][i * values + d];
      }
    }
    through_unit(q, query, dquery, t, g.dq);
    through_unit(k, key, dkey, t, g.dk);
  }
  return g;
}

Doubles hyper_mix(const Doubles& mix, const Doubles& base, const Doubles& scale, std::int64_t streams,
                  std::int64_t iterations, double eps) {
  const auto n = static_cast<std::size_t>(streams);
  Doubles out(mix.size());
  for (std::size_t i = 0; i < mix.size(); ++i) out[i] = mix[i] * scale[i < n ? 0 : i < 2 * n ? 1 : 2] + base[i];
  for (std::size_t i = 0; i < n; ++i) out[i] = sigmoid(out[i]) + eps;
  for (std::size_t i = n; i < 2 * n; ++i) out[i] = 2 * sigmoid(out[i]);
  double* c = &out[2 * n];
  const auto divide = [&](bool rows, double guard) {
    for (std::size_t i = 0; i < n; ++i) {
      double sum = guard;
      for (std::size_t j = 0; j < n; ++j) sum += rows ? c[i * n + j] : c[j * n + i];
      for (std::size_t j = 0; j < n; ++j) (rows ? c[i * n + j] : c[j * n + i]) /= sum;
    }
  };
  for (std::size_t i = 0; i < n * n; ++i) c[i] = std::exp(c[i]);
  divide(true, 0);
  for (std::size_t i = 0; i < n * n; ++i) c[i] += eps;
  divide(false, eps);
  for (std::int64_t step = 1; step < iterations; ++step) {
    divide(true, eps);
    divide(false, eps);
  }
  return out;
}

}  // namespace troupe::kernels::reference
