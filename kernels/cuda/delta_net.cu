// Gated DeltaNet on the GPU: the convolution and the recurrence, forward. Bits: the CPU's (delta_net.h): one row after
// the other, one chain over key_dim, nothing fused.
//
// Convolution: a thread per number, 8 bytes to and from memory (taps from cache), 2 taps + 25 flops.
// Recurrence: a warp per 32 value channels of a head, their part of the state in shared memory from the first row to
// the last; 4 key_dim value_dim + 3 key_dim multiply-adds a row and head. Its rows follow each other, so what bounds it
// is the time of a row (2 key_dim steps, some 2 us at key_dim 128), not memory; heads, channels and sequences run side
// by side.
#include "kernels/delta_net.h"

#include <cmath>

#include "kernels/cuda/math.cuh"

namespace troupe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxKeyDim = 1024;

__global__ void __launch_bounds__(kThreads) conv_kernel(CausalConv a) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.rows * a.channels) return;
  const std::int64_t t = i / a.channels;
  const std::int64_t c = i % a.channels;
  float y = 0;
  for (std::int64_t j = 0; j < a.taps; ++j) {
    const std::int64_t source = t - a.taps + 1 + j;
    if (source < 0 && a.history == nullptr) continue;
    const float* x = source < 0 ? a.history + (source + a.taps - 1) * a.channels : a.x + source * a.channels;
    y += a.weight[c * a.taps + j] * x[c];
  }
  a.y[i] = y * sigmoid_of(y);
}

/// x / sqrt(sum x^2 + 1e-6) * factor, by the warp; the sum is one chain in float64, made by every lane for itself.
__device__ void unit(const float* x, std::int64_t n, float factor, float* y) {
  for (std::int64_t i = threadIdx.x; i < n; i += kWarp) y[i] = x[i];
  __syncwarp();
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(y[i]) * static_cast<double>(y[i]);
  const auto scale = static_cast<float>(1 / sqrt(sum + 1e-6));
  __syncwarp();
  for (std::int64_t i = threadIdx.x; i < n; i += kWarp) y[i] = y[i] * scale * factor;
  __syncwarp();
}

/// One row: u = beta (v - S^T k) and out = S^T q for this thread's channel of the decayed state.
__device__ float advance(float* state, const float* q, const float* k, std::int64_t key_dim, float decay, float beta,
                         float v) {
  float known = 0;
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const float s = state[i * kWarp] * decay;
    state[i * kWarp] = s;
    known += s * k[i];
  }
  const float u = beta * (v - known);
  float out = 0;
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const float s = state[i * kWarp] + k[i] * u;
    state[i * kWarp] = s;
    out += s * q[i];
  }
  return out;
}

__global__ void __launch_bounds__(kWarp) rule_kernel(DeltaRule a, float query_scale) {
  TROUPE_DYNAMIC_SHARED(float, memory);
  const std::int64_t head = blockIdx.y;
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const bool inside = channel < a.value_dim;
  const std::int64_t keys = a.key_heads * a.key_dim;
  const std::int64_t key_head = head * a.key_heads / a.value_heads;
  float* q = memory;
  float* k = q + a.key_dim;
  float* state = k + a.key_dim + threadIdx.x;  // [key_dim][32], this lane's column
  float* kept = a.state + head * a.key_dim * a.value_dim + channel;
  for (std::int64_t i = 0; i < a.key_dim; ++i) state[i * kWarp] = inside ? kept[i * a.value_dim] : 0.0f;
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const float* x = a.qkv + row * (2 * keys + a.value_heads * a.value_dim);
    unit(x + key_head * a.key_dim, a.key_dim, query_scale, q);
    unit(x + keys + key_head * a.key_dim, a.key_dim, 1, k);
    const float v = inside ? x[2 * keys + head * a.value_dim + channel] : 0.0f;
    const std::int64_t at = row * a.value_heads + head;
    const float out = advance(state, q, k, a.key_dim, exp_of(a.decay[at]), a.beta[at], v);
    if (inside) a.out[at * a.value_dim + channel] = out;
    __syncwarp();  // all lanes are done with this row's q and k
  }
  for (std::int64_t i = 0; i < a.key_dim && inside; ++i) kept[i * a.value_dim] = state[i * kWarp];
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_causal_conv(const troupe::kernels::CausalConv* args, void* stream) {
  using namespace troupe::kernels;
  return cuda::launch(cuda::conv_kernel, {cuda::pieces(args->rows * args->channels, cuda::kThreads)},
                      {cuda::kThreads, 1, 1}, 0, stream, *args);
}

TROUPE_EXPORT const char* troupe_cuda_delta_rule(const troupe::kernels::DeltaRule* args, void* stream) {
  using namespace troupe::kernels;
  if (args->key_dim > cuda::kMaxKeyDim) return "delta_rule: more than 1024 key channels";
  const auto bytes = static_cast<std::size_t>((2 + cuda::kWarp) * args->key_dim) * sizeof(float);
  const auto query_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(args->key_dim)));
  return cuda::launch(cuda::rule_kernel, {cuda::pieces(args->value_dim, cuda::kWarp), args->value_heads},
                      {cuda::kWarp, 1, 1}, bytes, stream, *args, query_scale);
}
