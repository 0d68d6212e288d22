// RMS normalisation on the GPU: one block per vector; the weight gradient sums fixed slices of the vectors in order.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/rmsnorm.h"

namespace troupe::kernels {
namespace {

constexpr int kThreads = 256;       // 8 warps: a vector of 4096 floats is 16 loads a thread
constexpr int kColumnThreads = 32;  // one warp of neighbouring columns per block of the weight gradient
constexpr int kSlices = 8;          // slices of the vectors that the weight gradient sums side by side

/// The sum of `value` over the block, in every thread. Fixed order: lanes by butterfly, then warps ascending.
__device__ float block_sum(float value) {
  __shared__ float warps[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  __syncthreads();  // the previous call's reads are done
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += warps[w];
  return sum;
}

__global__ void __launch_bounds__(kThreads) forward_kernel(RmsNormForward a) {
  const std::int64_t row = blockIdx.x / a.heads;
  const std::int64_t head = blockIdx.x % a.heads;
  const float* x = a.x + row * a.x_stride + head * a.cols;
  float* y = a.y + row * a.y_stride + head * a.cols;
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < a.cols; i += kThreads) squares = fmaf(x[i], x[i], squares);
  const float s = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(a.cols) + a.eps);
  for (std::int64_t i = threadIdx.x; i < a.cols; i += kThreads) y[i] = x[i] * s * a.weight[i];
  if (threadIdx.x == 0 && a.inv_rms != nullptr) a.inv_rms[blockIdx.x] = s;
}

__global__ void __launch_bounds__(kThreads) dx_kernel(RmsNormBackward a) {
  const std::int64_t row = blockIdx.x / a.heads;
  const std::int64_t head = blockIdx.x % a.heads;
  const float* x = a.x + row * a.x_stride + head * a.cols;
  const float* dy = a.dy + row * a.dy_stride + head * a.cols;
  float* dx = a.dx + row * a.dx_stride + head * a.cols;
  const float s = a.inv_rms[blockIdx.x];
  float dot = 0;
  for (std::int64_t i = threadIdx.x; i < a.cols; i += kThreads) dot = fmaf(a.weight[i] * dy[i], x[i], dot);
  const float pull = s * s * s * (block_sum(dot) / static_cast<float>(a.cols));
  for (std::int64_t i = threadIdx.x; i < a.cols; i += kThreads) dx[i] = a.weight[i] * dy[i] * s - x[i] * pull;
}

__global__ void __launch_bounds__(kColumnThreads* kSlices) dweight_kernel(RmsNormBackward a) {
  __shared__ float partial[kSlices][kColumnThreads];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  const std::int64_t vectors = a.rows * a.heads;
  const std::int64_t begin = vectors * threadIdx.y / kSlices;
  const std::int64_t end = vectors * (threadIdx.y + 1) / kSlices;
  float sum = 0;
  if (column < a.cols) {
    for (std::int64_t v = begin; v < end; ++v) {
      const std::int64_t row = v / a.heads;
      const std::int64_t offset = v % a.heads * a.cols + column;
      sum = fmaf(a.dy[row * a.dy_stride + offset] * a.inv_rms[v], a.x[row * a.x_stride + offset], sum);
    }
  }
  partial[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= a.cols) return;
  float total = 0;
  for (int slice = 0; slice < kSlices; ++slice) total += partial[slice][threadIdx.x];
  a.dweight[column] = total;
}

const char* launched() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace
}  // namespace troupe::kernels

#define TROUPE_EXPORT extern "C" __attribute__((visibility("default")))

TROUPE_EXPORT const char* troupe_cuda_rmsnorm_forward(const troupe::kernels::RmsNormForward* args, void* stream) {
  const auto blocks = static_cast<unsigned>(args->rows * args->heads);
  troupe::kernels::forward_kernel<<<blocks, troupe::kernels::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*args);
  return troupe::kernels::launched();
}

TROUPE_EXPORT const char* troupe_cuda_rmsnorm_backward(const troupe::kernels::RmsNormBackward* args, void* stream) {
  using namespace troupe::kernels;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (args->dweight != nullptr) {  // first: dx may be written over dy
    const auto blocks = static_cast<unsigned>((args->cols + kColumnThreads - 1) / kColumnThreads);
    dweight_kernel<<<blocks, dim3(kColumnThreads, kSlices), 0, cuda_stream>>>(*args);
  }
  dx_kernel<<<static_cast<unsigned>(args->rows * args->heads), kThreads, 0, cuda_stream>>>(*args);
  return launched();
}
