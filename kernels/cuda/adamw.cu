// One step of AdamW on the GPU. Bits: the CPU's (adamw.h); nothing is summed.
// A thread per number: 28 bytes to and from memory, 15 flops: bound by memory, 5.8 us per million parameters on an H200.
#include "kernels/adamw.h"

#include <cmath>

#include "kernels/cuda/math.cuh"

namespace troupe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// What all numbers share, rounded once.
struct Factors {
  float decay, beta1, one_minus_beta1, beta2, one_minus_beta2, inv_sqrt_correction2, eps, step_size, grad_scale;
};

Factors factors_of(const AdamW& a) {
  const double correction1 = 1 - std::pow(a.beta1, static_cast<double>(a.step));
  const double correction2 = 1 - std::pow(a.beta2, static_cast<double>(a.step));
  return {static_cast<float>(1 - a.lr * a.weight_decay), static_cast<float>(a.beta1),
          static_cast<float>(1 - a.beta1),               static_cast<float>(a.beta2),
          static_cast<float>(1 - a.beta2),               static_cast<float>(1 / std::sqrt(correction2)),
          static_cast<float>(a.eps),                     static_cast<float>(a.lr / correction1),
          a.grad_scale};
}

__global__ void __launch_bounds__(kThreads)
    step_kernel(float* param, const float* grad, float* m_of, float* v_of, std::int64_t n, Factors f) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float g = grad[i] * f.grad_scale;
  const float m = fmaf(m_of[i], f.beta1, g * f.one_minus_beta1);
  const float v = fmaf(v_of[i], f.beta2, g * g * f.one_minus_beta2);
  const float denominator = fmaf(sqrtf(v), f.inv_sqrt_correction2, f.eps);
  m_of[i] = m;
  v_of[i] = v;
  param[i] = fmaf(-f.step_size, m / denominator, param[i] * f.decay);
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_adamw_step(const troupe::kernels::AdamW* args, void* stream) {
  using namespace troupe::kernels;
  const AdamW& a = *args;
  return cuda::launch(cuda::step_kernel, {cuda::pieces(a.n, cuda::kThreads)}, {cuda::kThreads, 1, 1}, 0, stream,
                      a.param, a.grad, a.m, a.v, a.n, cuda::factors_of(a));
}
