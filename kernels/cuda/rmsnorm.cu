// RMS normalisation on the GPU. Bits: the CPU's (rmsnorm.h): 64 lanes by column, blocks of 64 vectors.
//
// Forward: a warp per vector; 8 bytes a float from and to memory (the second reading comes from L1), 4 flops: bound by
// memory, 4.8 TB/s on an H200, so 0.3 us per million floats. dx: 12 bytes a float. dweight: 8 bytes a float.
#include "kernels/rmsnorm.h"
#include "kernels/cuda/math.cuh"

namespace troupe::kernels::cuda {
namespace {

constexpr int kVectors = 8;          // of a block, one per warp
constexpr int kSlices = 32;          // blocks of vectors that the weight gradient sums side by side
constexpr std::int64_t kBlock = 64;  // vectors in one chain, as on the CPU

struct Place {
  std::int64_t vector, row, head;
  int lane;
  bool inside;
};
__device__ inline Place my_vector(std::int64_t rows, std::int64_t heads) {
  const std::int64_t vector = static_cast<std::int64_t>(blockIdx.x) * kVectors + threadIdx.y;
  return {vector, vector / heads, vector % heads, static_cast<int>(threadIdx.x), vector < rows * heads};
}

__global__ void __launch_bounds__(kWarp* kVectors) forward_kernel(RmsNormForward a) {
  const Place p = my_vector(a.rows, a.heads);
  if (!p.inside) return;  // a whole warp
  const float* x = a.x + p.row * a.x_stride + p.head * a.cols;
  float* y = a.y + p.row * a.y_stride + p.head * a.cols;
  float squares[2] = {0, 0};
  for (std::int64_t i = p.lane; i < a.cols; i += 2 * kWarp) {
    squares[0] = fmaf(x[i], x[i], squares[0]);
    if (i + kWarp < a.cols) squares[1] = fmaf(x[i + kWarp], x[i + kWarp], squares[1]);
  }
  const float mean = sum_of_64(squares[0], squares[1]) / static_cast<float>(a.cols);
  const float s = 1.0f / sqrtf(mean + a.eps);
  for (std::int64_t i = p.lane; i < a.cols; i += kWarp) y[i] = x[i] * s * a.weight[i];
  if (p.lane == 0 && a.inv_rms != nullptr) a.inv_rms[p.vector] = s;
}

__global__ void __launch_bounds__(kWarp* kVectors) dx_kernel(RmsNormBackward a) {
  const Place p = my_vector(a.rows, a.heads);
  if (!p.inside) return;
  const float* x = a.x + p.row * a.x_stride + p.head * a.cols;
  const float* dy = a.dy + p.row * a.dy_stride + p.head * a.cols;
  float* dx = a.dx + p.row * a.dx_stride + p.head * a.cols;
  const float s = a.inv_rms[p.vector];
  float dots[2] = {0, 0};
  for (std::int64_t i = p.lane; i < a.cols; i += 2 * kWarp) {
    dots[0] = fmaf(a.weight[i] * dy[i], x[i], dots[0]);
    const std::int64_t j = i + kWarp;
    if (j < a.cols) dots[1] = fmaf(a.weight[j] * dy[j], x[j], dots[1]);
  }
  const float pull = s * s * s * (sum_of_64(dots[0], dots[1]) / static_cast<float>(a.cols));
  for (std::int64_t i = p.lane; i < a.cols; i += kWarp) dx[i] = fmaf(-x[i], pull, a.weight[i] * dy[i] * s);
}

/// 32 neighbouring columns; slice y sums every kSlices-th block of vectors, and slice 0 adds the blocks in order.
__global__ void __launch_bounds__(kWarp* kSlices) dweight_kernel(RmsNormBackward a) {
  TROUPE_SHARED(float, partial, [kSlices][kWarp]);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const std::int64_t vectors = a.rows * a.heads;
  float total = 0;
  for (std::int64_t first = 0; first < vectors; first += kSlices * kBlock) {
    const std::int64_t begin = first + threadIdx.y * kBlock;
    const std::int64_t end = begin + kBlock < vectors ? begin + kBlock : vectors;
    float sum = 0;
    for (std::int64_t v = begin; v < end && column < a.cols; ++v) {
      const std::int64_t row = v / a.heads;
      const std::int64_t offset = v % a.heads * a.cols + column;
      sum = fmaf(a.dy[row * a.dy_stride + offset] * a.inv_rms[v], a.x[row * a.x_stride + offset], sum);
    }
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int slice = 0; threadIdx.y == 0 && slice < kSlices; ++slice) total += partial[slice][threadIdx.x];
    __syncthreads();
  }
  if (threadIdx.y == 0 && column < a.cols) a.dweight[column] = total;
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_rmsnorm_forward(const troupe::kernels::RmsNormForward* args, void* stream) {
  using namespace troupe::kernels;
  RmsNormForward a = *args;
  if (a.x_stride == 0) a.x_stride = a.heads * a.cols;
  if (a.y_stride == 0) a.y_stride = a.heads * a.cols;
  return cuda::launch(cuda::forward_kernel, {cuda::pieces(a.rows * a.heads, cuda::kVectors)},
                      {cuda::kWarp, cuda::kVectors, 1}, 0, stream, a);
}

TROUPE_EXPORT const char* troupe_cuda_rmsnorm_backward(const troupe::kernels::RmsNormBackward* args, void* stream) {
  using namespace troupe::kernels;
  RmsNormBackward a = *args;
  if (a.x_stride == 0) a.x_stride = a.heads * a.cols;
  if (a.dy_stride == 0) a.dy_stride = a.heads * a.cols;
  if (a.dx_stride == 0) a.dx_stride = a.heads * a.cols;
  if (a.dweight != nullptr) {  // first: dx may be written over dy
    if (const char* refused = cuda::launch(cuda::dweight_kernel, {cuda::pieces(a.cols, cuda::kWarp)},
                                           {cuda::kWarp, cuda::kSlices, 1}, 0, stream, a))
      return refused;
  }
  return cuda::launch(cuda::dx_kernel, {cuda::pieces(a.rows * a.heads, cuda::kVectors)},
                      {cuda::kWarp, cuda::kVectors, 1}, 0, stream, a);
}
