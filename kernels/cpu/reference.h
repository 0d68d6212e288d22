/// @file
/// Every CPU kernel again, in float64 and in the plainest form: what the tests compare with. Never in the product.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe::kernels::reference {

using Doubles = std::vector<double>;

/// y[m, n] = x[m, k] w[n, k]^T
Doubles matmul(const Doubles& x, const Doubles& w, std::int64_t m, std::int64_t n, std::int64_t k);

struct Norm {
  Doubles y, inv_rms;
};
Norm rmsnorm(const Doubles& x, const Doubles& weight, double eps);

struct NormGrad {
  Doubles dx, dweight;
};
NormGrad rmsnorm_backward(const Doubles& x, const Doubles& weight, const Doubles& dy, double eps);

/// Rotates pairs (i, i + rotary/2) of every head; cos and sin are [rows, rotary/2].
Doubles rope(const Doubles& x, const Doubles& cos, const Doubles& sin, std::int64_t heads, std::int64_t head_dim,
             std::int64_t rotary, bool inverse);

Doubles swiglu(const Doubles& gate, const Doubles& up);
struct SwigluGrad {
  Doubles dgate, dup;
};
SwigluGrad swiglu_backward(const Doubles& gate, const Doubles& up, const Doubles& dy);

struct Logprob {
  double logprob, entropy, lse;
};
/// Of one row.
Logprob logprob(const Doubles& logits, std::int64_t target, double temperature);
Doubles logprob_backward(const Doubles& logits, std::int64_t target, double temperature, double dlogprob,
                         double dentropy);

/// The probabilities of one row, and where they first add up to more than `uniform`.
struct Sample {
  Doubles cumulative;
  std::int64_t id;
};
Sample sample(const Doubles& logits, double temperature, double uniform);

/// One sequence: q [rows, heads, hd], k and v [keys, kv_heads, hd]; the last `rows` keys are the queries' own.
struct Attention {
  std::int64_t rows, keys, heads, kv_heads, head_dim;
  double scale;
};
struct AttentionOut {
  Doubles out, lse;
};
AttentionOut attention(const Attention& a, const Doubles& q, const Doubles& k, const Doubles& v);
struct AttentionGrad {
  Doubles dq, dk, dv;
};
AttentionGrad attention_backward(const Attention& a, const Doubles& q, const Doubles& k, const Doubles& v,
                                 const Doubles& dout);

/// One query head over listed keys and values, with a sink (-infinity: none). Shapes: q [kd], keys [n, kd], values [n, vd].
Doubles attend(const Doubles& q, const Doubles& keys, const Doubles& values, double scale, double sink);

struct AttendGrad {
  Doubles dq, dkeys, dvalues;
  double dsink;
};
AttendGrad attend_backward(const Doubles& q, const Doubles& keys, const Doubles& values, double scale, double sink,
                           const Doubles& dout);

/// silu of the causal convolution. Shapes: x [rows, channels], history [taps - 1, channels] (zeros where there is none),
/// weight [channels, taps].
Doubles causal_conv(const Doubles& x, const Doubles& history, const Doubles& weight, std::int64_t channels, std::int64_t taps);
struct ConvGrad {
  Doubles dx, dhistory, dweight;
};
ConvGrad causal_conv_backward(const Doubles& x, const Doubles& history, const Doubles& weight, const Doubles& dy,
                              std::int64_t channels, std::int64_t taps);

/// One value head of the gated delta rule. Shapes: q, k [rows, dk] before their normalisation, v [rows, dv], decay and beta
/// [rows], state [dk, dv], changed; result [rows, dv].
Doubles delta_rule(const Doubles& q, const Doubles& k, const Doubles& v, const Doubles& decay, const Doubles& beta,
                   std::int64_t dk, std::int64_t dv, Doubles& state);

/// Its gradients, row by row from the last to the first. `state`: before the first row; `dstate`: of the state behind the
/// last row; becomes that of the one before the first.
struct DeltaGrad {
  Doubles dq, dk, dv, ddecay, dbeta;
};
DeltaGrad delta_rule_backward(const Doubles& q, const Doubles& k, const Doubles& v, const Doubles& decay, const Doubles& beta,
                              const Doubles& dout, std::int64_t dk, std::int64_t dv, const Doubles& state, Doubles& dstate);

/// pre | post | C of one row (streams.h).
Doubles hyper_mix(const Doubles& mix, const Doubles& base, const Doubles& scale, std::int64_t streams,
                  std::int64_t iterations, double eps);

/// One element's step; returns the new {param, m, v}.
struct AdamWState {
  double param, m, v;
};
AdamWState adamw(AdamWState state, double grad, double lr, double beta1, double beta2, double eps, double weight_decay,
                 std::int64_t step);

}  // namespace troupe::kernels::reference
