// Rotary position embedding on the GPU, in place. Bits: the CPU's (rope.h, pointwise.h); nothing is summed.
// A thread per pair: 8 bytes a float to and from memory, cos and sin mostly from cache, 3 flops: bound by memory.
#include "kernels/rope.h"
#include "kernels/cuda/math.cuh"
#include "kernels/pointwise.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Pair `i` of head `head` in row `row`, from the number of a thread.
struct Pair {
  std::int64_t row, head, i;
};
__device__ inline Pair my_pair(std::int64_t index, std::int64_t heads, std::int64_t pairs) {
  return {index / pairs / heads, index / pairs % heads, index % pairs};
}
__device__ inline std::int64_t my_index() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads) rope_kernel(Rope a) {
  const std::int64_t half = a.rotary / 2;
  if (my_index() >= a.rows * a.heads * half) return;
  const Pair at = my_pair(my_index(), a.heads, half);
  float* x = a.x + at.row * a.stride + at.head * a.head_dim + at.i;
  const float c = a.cos[at.row * half + at.i];
  float s = a.sin[at.row * half + at.i];
  if (a.inverse) s = 0.0f - s;
  const float p = x[0];
  const float q = x[half];
  x[0] = fmaf(-q, s, p * c);
  x[half] = fmaf(p, s, q * c);
}

__global__ void __launch_bounds__(kThreads) pairs_kernel(RopePairs a) {
  if (my_index() >= a.rows * a.heads * a.pairs) return;
  const Pair at = my_pair(my_index(), a.heads, a.pairs);
  float* x = a.x + (at.row * a.heads + at.head + 1) * a.head_dim - 2 * a.pairs + 2 * at.i;
  const float c = a.cos[at.row * a.pairs + at.i];
  const float s = a.inverse ? -a.sin[at.row * a.pairs + at.i] : a.sin[at.row * a.pairs + at.i];
  const float p = x[0];
  const float q = x[1];
  x[0] = p * c - q * s;
  x[1] = q * c + p * s;
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_rope(const troupe::kernels::Rope* args, void* stream) {
  using namespace troupe::kernels;
  Rope a = *args;
  if (a.stride == 0) a.stride = a.heads * a.head_dim;
  if (a.rotary == 0) a.rotary = a.head_dim;
  return cuda::launch(cuda::rope_kernel, {cuda::pieces(a.rows * a.heads * (a.rotary / 2), cuda::kThreads)},
                      {cuda::kThreads, 1, 1}, 0, stream, a);
}

TROUPE_EXPORT const char* troupe_cuda_rope_pairs(const troupe::kernels::RopePairs* args, void* stream) {
  using namespace troupe::kernels;
  return cuda::launch(cuda::pairs_kernel, {cuda::pieces(args->rows * args->heads * args->pairs, cuda::kThreads)},
                      {cuda::kThreads, 1, 1}, 0, stream, *args);
}
