// Log-probability, entropy and argmax of logit rows, and their gradient, on the GPU. Bits: the CPU's (logprob.h).
//
// A block per row, the vocabulary in tiles of 4096. Forward reads a row twice (three times with argmax) and makes one
// exponential a logit; the sums are 64 chains of vocab / 64 terms, about 10 us for 151,936 whatever the number of rows.
// With a row per SM or more it is bound by memory: 8 bytes a logit, backward 8 in and out, on an H200 0.25 ms per
// 1,000 rows of 151,936.
#include "kernels/logprob.h"
#include "kernels/cuda/logits.cuh"

namespace troupe::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kRowThreads) forward_kernel(LogprobForward a) {
  const std::int64_t row = blockIdx.x;
  const float* x = a.logits + row * a.ldl;
  const float largest = row_maximum(x, a.vocab);
  if (a.argmax != nullptr) {
    const std::int64_t index = first_index_of(largest, x, a.vocab);
    if (threadIdx.x == 0) a.argmax[row] = static_cast<std::int32_t>(index);
  }
  if (a.logprob == nullptr && a.entropy == nullptr && a.lse == nullptr) return;
  const float maximum = largest / a.temperature;
  const RowSums sums = sum_exponentials(x, a.vocab, a.temperature, maximum, a.entropy != nullptr,
                                        [](std::int64_t, float) {});
  if (threadIdx.x != 0) return;
  const float log_sum = sums.sum == sums.sum ? log_of(sums.sum) : sums.sum;
  if (a.logprob != nullptr) a.logprob[row] = (x[a.targets[row]] / a.temperature - maximum) - log_sum;
  if (a.entropy != nullptr) a.entropy[row] = log_sum - sums.weighted / sums.sum;
  if (a.lse != nullptr) a.lse[row] = maximum + log_sum;
}

__global__ void __launch_bounds__(kRowThreads) backward_kernel(LogprobBackward a) {
  const std::int64_t row = blockIdx.x;
  const float* x = a.logits + row * a.ldl;
  float* d = a.dlogits + row * a.ldd;
  const float dentropy = a.dentropy == nullptr ? 0.0f : a.dentropy[row];
  const float entropy = a.dentropy == nullptr ? 0.0f : a.entropy[row];
  const std::int64_t target = a.targets[row];
  for (std::int64_t i = threadIdx.x; i < a.ldd; i += kRowThreads) {
    if (i >= a.vocab) {
      d[i] = 0;
      continue;
    }
    const float full = x[i] / a.temperature - a.lse[row];
    const float log_p = full < kFarBelow ? kFarBelow : full;
    const float pull = fmaf(dentropy, log_p + entropy, a.dlogprob[row]);
    float slope = (0.0f - exp_of(log_p)) * pull / a.temperature;
    if (i == target) slope += a.dlogprob[row] / a.temperature;
    d[i] = slope;
  }
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_logprob_forward(const troupe::kernels::LogprobForward* args, void* stream) {
  using namespace troupe::kernels;
  LogprobForward a = *args;
  if (a.ldl == 0) a.ldl = a.vocab;
  return cuda::launch(cuda::forward_kernel, {a.rows}, {cuda::kRowThreads, 1, 1}, 0, stream, a);
}

TROUPE_EXPORT const char* troupe_cuda_logprob_backward(const troupe::kernels::LogprobBackward* args, void* stream) {
  using namespace troupe::kernels;
  LogprobBackward a = *args;
  if (a.ldl == 0) a.ldl = a.vocab;
  if (a.ldd == 0) a.ldd = a.ldl;
  return cuda::launch(cuda::backward_kernel, {a.rows}, {cuda::kRowThreads, 1, 1}, 0, stream, a);
}
