// The gradient of Gated DeltaNet's recurrence on the GPU, row by row from the last one. Each sum over channels is one
// chain, so the same inputs give the same bits; they are not the CPU's, which sums in chunks (delta_net.h).
//
// A block per value head, with the state and its gradient in shared memory. A first pass forward keeps the state at the
// begin of every 64 rows; from the last of these stretches to the first, its rows' states are made again and read
// backwards. About 14 key_dim value_dim multiply-adds a row and head. Rows follow each other: some 8 us a row at 128 x 128
// is what bounds it; heads run side by side. Workspace: 64 states a head, one per 64 rows, and 2 key_dim floats a row.
#include "kernels/delta_net.h"

#include <cmath>

#include "kernels/cuda/math.cuh"
#include "kernels/cuda_args.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kStretch = 64;
constexpr std::int64_t kMaxShared = 227 * 1024;

/// Shared memory of a block; states have a float between rows.
struct Head {
  float *state, *slope;                  ///< [key_dim][value_dim + 1]: S, and the gradient of S.
  float *q, *k, *q_raw, *k_raw;          ///< [key_dim], with and without their normalisation.
  float *dq, *dk, *dfactor;              ///< [key_dim]; of the decay, per row of the state.
  float *v, *dout, *u, *miss, *dmiss;    ///< [value_dim]; miss = v - S^T k.
  float *dbeta;                          ///< [value_dim]
};
constexpr std::int64_t head_floats(std::int64_t dk, std::int64_t dv) { return 2 * dk * (dv + 1) + 7 * dk + 6 * dv; }
__device__ inline Head head_in(float* memory, std::int64_t dk, std::int64_t dv) {
  Head h;
  float** const of_keys[] = {&h.q, &h.k, &h.q_raw, &h.k_raw, &h.dq, &h.dk, &h.dfactor};
  float** const of_values[] = {&h.v, &h.dout, &h.u, &h.miss, &h.dmiss, &h.dbeta};
  h.state = memory;
  h.slope = h.state + dk * (dv + 1);
  float* next = h.slope + dk * (dv + 1);
  for (float** place : of_keys) {
    *place = next;
    next += dk;
  }
  for (float** place : of_values) {
    *place = next;
    next += dv;
  }
  return h;
}

/// What all rows of a head share.
struct Work {
  CudaDeltaGrad a;
  std::int64_t stretches;
  float query_scale;
  float* states;    ///< [value_heads][stretches + kStretch][key_dim][value_dim]
  float* partials;  ///< [rows][value_heads][2 key_dim], of q and k
};

__device__ inline std::int64_t width_of(const DeltaRuleGrad& g) {
  return 2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim;
}
__device__ inline float* kept_state(const Work& w, std::int64_t index) {
  const DeltaRuleGrad& g = w.a.grad;
  return w.states + (blockIdx.x * (w.stretches + kStretch) + index) * g.key_dim * g.value_dim;
}

/// Copies a state between memory and shared memory, or zeros where there is none. Ends with a barrier.
__device__ void read_state(const float* from, std::int64_t dk, std::int64_t dv, float* state) {
  for (std::int64_t i = threadIdx.x; i < dk * dv; i += kThreads)
    state[i / dv * (dv + 1) + i % dv] = from == nullptr ? 0.0f : from[i];
  __syncthreads();
}
__device__ void write_state(const float* state, std::int64_t dk, std::int64_t dv, float* to) {
  for (std::int64_t i = threadIdx.x; i < dk * dv; i += kThreads) to[i] = state[i / dv * (dv + 1) + i % dv];
  __syncthreads();
}

/// 1 / sqrt(sum x^2 + 1e-6), by every thread for itself.
__device__ inline float inverse_norm(const float* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return static_cast<float>(1 / sqrt(sum + 1e-6));
}

/// q, k (normalised), v and dout of a row. Ends with a barrier.
__device__ void load_row(const Work& w, std::int64_t row, const Head& h) {
  const DeltaRuleGrad& g = w.a.grad;
  const std::int64_t head = blockIdx.x;
  const std::int64_t key_head = head * g.key_heads / g.value_heads;
  const float* x = g.qkv + row * width_of(g);
  for (std::int64_t i = threadIdx.x; i < g.key_dim; i += kThreads) {
    h.q_raw[i] = x[key_head * g.key_dim + i];
    h.k_raw[i] = x[(g.key_heads + key_head) * g.key_dim + i];
  }
  for (std::int64_t d = threadIdx.x; d < g.value_dim; d += kThreads) {
    h.v[d] = x[2 * g.key_heads * g.key_dim + head * g.value_dim + d];
    h.dout[d] = g.dout[(row * g.value_heads + head) * g.value_dim + d];
  }
  __syncthreads();
  const float q_norm = inverse_norm(h.q_raw, g.key_dim);
  const float k_norm = inverse_norm(h.k_raw, g.key_dim);
  for (std::int64_t i = threadIdx.x; i < g.key_dim; i += kThreads) {
    h.q[i] = h.q_raw[i] * q_norm * w.query_scale;
    h.k[i] = h.k_raw[i] * k_norm;
  }
  __syncthreads();
}

/// The state behind a row, a thread per value channel. Ends with a barrier.
__device__ void advance(const Head& h, std::int64_t dk, std::int64_t dv, float factor, float beta) {
  for (std::int64_t d = threadIdx.x; d < dv; d += kThreads) {
    float known = 0;
    for (std::int64_t i = 0; i < dk; ++i) known = fmaf(h.state[i * (dv + 1) + d] * factor, h.k[i], known);
    const float u = beta * (h.v[d] - known);
    for (std::int64_t i = 0; i < dk; ++i) {
      float& s = h.state[i * (dv + 1) + d];
      s = fmaf(h.k[i], u, s * factor);
    }
  }
  __syncthreads();
}

/// By value channel: what the row added to the state, and the gradients of v and of the miss.
__device__ void channel_slopes(const Work& w, std::int64_t row, const Head& h, float factor, float beta) {
  const DeltaRuleGrad& g = w.a.grad;
  const std::int64_t pitch = g.value_dim + 1;
  for (std::int64_t d = threadIdx.x; d < g.value_dim; d += kThreads) {
    float known = 0;
    float du = 0;
    for (std::int64_t i = 0; i < g.key_dim; ++i) {
      known = fmaf(h.state[i * pitch + d] * factor, h.k[i], known);
      const float slope = fmaf(h.q[i], h.dout[d], h.slope[i * pitch + d]);
      h.slope[i * pitch + d] = slope;
      du = fmaf(slope, h.k[i], du);
    }
    h.miss[d] = h.v[d] - known;
    h.u[d] = beta * h.miss[d];
    h.dmiss[d] = beta * du;
    h.dbeta[d] = du * h.miss[d];
    g.dqkv[row * width_of(g) + 2 * g.key_heads * g.key_dim + blockIdx.x * g.value_dim + d] = h.dmiss[d];
  }
  __syncthreads();
}

/// By key channel: gradients of q and k as the recurrence reads them, of the decay's factor, and of the state before.
__device__ void key_slopes(const Head& h, std::int64_t dk, std::int64_t dv, float factor) {
  for (std::int64_t i = threadIdx.x; i < dk; i += kThreads) {
    float dq = 0;
    float dk_sum = 0;
    float dfactor = 0;
    for (std::int64_t d = 0; d < dv; ++d) {
      const float before = h.state[i * (dv + 1) + d];
      const float decayed = before * factor;
      dq = fmaf(fmaf(h.k[i], h.u[d], decayed), h.dout[d], dq);
      dk_sum = fmaf(h.slope[i * (dv + 1) + d], h.u[d], dk_sum);
      dk_sum = fmaf(-decayed, h.dmiss[d], dk_sum);
      const float slope = fmaf(-h.k[i], h.dmiss[d], h.slope[i * (dv + 1) + d]);
      dfactor = fmaf(slope, before, dfactor);
      h.slope[i * (dv + 1) + d] = slope * factor;
    }
    h.dq[i] = dq;
    h.dk[i] = dk_sum;
    h.dfactor[i] = dfactor;
  }
  __syncthreads();
}

/// Through y = x scale / |x|: dx = scale / |x| (dy - x (x . dy) / |x|^2).
__device__ void through_norm(const float* x, const float* dy, std::int64_t n, float scale, float* dx) {
  const float inverse = inverse_norm(x, n);
  float dot = 0;
  for (std::int64_t i = 0; i < n; ++i) dot = fmaf(x[i], dy[i], dot);
  for (std::int64_t i = threadIdx.x; i < n; i += kThreads)
    dx[i] = scale * inverse * (dy[i] - x[i] * (dot * inverse * inverse));
}

__device__ void finish_row(const Work& w, std::int64_t row, const Head& h, float factor) {
  const DeltaRuleGrad& g = w.a.grad;
  const std::int64_t at = row * g.value_heads + blockIdx.x;
  through_norm(h.q_raw, h.dq, g.key_dim, w.query_scale, w.partials + at * 2 * g.key_dim);
  through_norm(h.k_raw, h.dk, g.key_dim, 1.0f, w.partials + at * 2 * g.key_dim + g.key_dim);
  if (threadIdx.x == 0) {
    float dfactor = 0;
    for (std::int64_t i = 0; i < g.key_dim; ++i) dfactor += h.dfactor[i];
    float dbeta = 0;
    for (std::int64_t d = 0; d < g.value_dim; ++d) dbeta += h.dbeta[d];
    g.ddecay[at] = dfactor * factor;
    g.dbeta[at] = dbeta;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) rule_kernel(const Work w) {
  TROUPE_DYNAMIC_SHARED(float, memory);
  const DeltaRuleGrad& g = w.a.grad;
  const std::int64_t dk = g.key_dim;
  const std::int64_t dv = g.value_dim;
  const Head h = head_in(memory, dk, dv);
  const std::int64_t head_state = blockIdx.x * dk * dv;
  const auto factor_of = [&](std::int64_t row) { return exp_of(g.decay[row * g.value_heads + blockIdx.x]); };
  const auto beta_of = [&](std::int64_t row) { return g.beta[row * g.value_heads + blockIdx.x]; };
  read_state(g.state == nullptr ? nullptr : g.state + head_state, dk, dv, h.state);
  for (std::int64_t row = 0; row < g.rows; ++row) {
    if (row % kStretch == 0) write_state(h.state, dk, dv, kept_state(w, row / kStretch));
    load_row(w, row, h);
    advance(h, dk, dv, factor_of(row), beta_of(row));
  }
  read_state(g.dstate_after == nullptr ? nullptr : g.dstate_after + head_state, dk, dv, h.slope);
  for (std::int64_t stretch = w.stretches - 1; stretch >= 0; --stretch) {
    const std::int64_t begin = stretch * kStretch;
    const std::int64_t end = begin + kStretch < g.rows ? begin + kStretch : g.rows;
    read_state(kept_state(w, stretch), dk, dv, h.state);
    for (std::int64_t row = begin; row < end; ++row) {
      write_state(h.state, dk, dv, kept_state(w, w.stretches + row - begin));
      load_row(w, row, h);
      advance(h, dk, dv, factor_of(row), beta_of(row));
    }
    for (std::int64_t row = end - 1; row >= begin; --row) {
      read_state(kept_state(w, w.stretches + row - begin), dk, dv, h.state);
      load_row(w, row, h);
      channel_slopes(w, row, h, factor_of(row), beta_of(row));
      key_slopes(h, dk, dv, factor_of(row));
      finish_row(w, row, h, factor_of(row));
    }
  }
  if (g.dstate != nullptr) write_state(h.slope, dk, dv, g.dstate + head_state);
}

/// dq and dk of a row: value heads that share a key head, added in their order.
__global__ void __launch_bounds__(kThreads) heads_kernel(const Work w) {
  const DeltaRuleGrad& g = w.a.grad;
  const std::int64_t keys = g.key_heads * g.key_dim;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= g.rows * 2 * keys) return;
  const std::int64_t row = i / (2 * keys);
  const std::int64_t part = i % (2 * keys) / keys;
  const std::int64_t key_head = i % keys / g.key_dim;
  const std::int64_t group = g.value_heads / g.key_heads;
  float sum = 0;
  for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head)
    sum += w.partials[((row * g.value_heads + head) * 2 + part) * g.key_dim + i % g.key_dim];
  g.dqkv[row * width_of(g) + i % (2 * keys)] = sum;
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_delta_rule_backward(const troupe::kernels::CudaDeltaGrad* args, void* stream) {
  using namespace troupe::kernels;
  const DeltaRuleGrad& g = args->grad;
  const std::int64_t bytes = cuda::head_floats(g.key_dim, g.value_dim) * 4;
  if (bytes > cuda::kMaxShared) return "delta_rule_backward: the state of a head does not fit into shared memory";
  cuda::Work w{*args, cuda::pieces(g.rows, cuda::kStretch), 0, static_cast<float*>(args->workspace), nullptr};
  w.query_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(g.key_dim)));
  w.partials = w.states + g.value_heads * (w.stretches + cuda::kStretch) * g.key_dim * g.value_dim;
  if (const char* refused = cuda::launch(cuda::rule_kernel, {g.value_heads}, {cuda::kThreads, 1, 1},
                                         static_cast<std::size_t>(bytes), stream, w))
    return refused;
  return cuda::launch(cuda::heads_kernel, {cuda::pieces(g.rows * 2 * g.key_heads * g.key_dim, cuda::kThreads)},
                      {cuda::kThreads, 1, 1}, 0, stream, w);
}
