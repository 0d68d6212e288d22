// Sums in place on the GPU. Bits: the CPU's (norms.h): one addition per number.
// A thread per number: 12 bytes to and from memory: bound by memory, 2.5 us per million numbers on an H200.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda_args.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) add_kernel(CudaAdd a) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < a.n) a.y[i] += a.x[i];
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_add(const troupe::kernels::CudaAdd* args, void* stream) {
  using namespace troupe::kernels;
  return cuda::launch(cuda::add_kernel, {cuda::pieces(args->n, cuda::kThreads)}, {cuda::kThreads, 1, 1}, 0, stream, *args);
}
