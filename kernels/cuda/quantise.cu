// Numbers in 8 and 4 bits with scales beside them, on the GPU: the bytes that formats/quantised.h writes, the bits that it
// reads. Writing rounds to nearest, ties to even, and cuts what is too large; scales:
//   kFp8Blocks    largest magnitude of a 128 x 128 block / 448 (1 for zeros);
//   kFp8BlocksE8  the least power of two that is no less than that;
//   kMxFp8, kMxFp4  2^(floor(log2(largest magnitude of 32)) - 8 or - 2): OCP Microscaling 1.0, section 6.3.
// A NaN or an infinity makes the scales of powers of two NaN, and otherwise stays (NaN) or is cut.
// Memory: 4 bytes a number and 1 or 1/2 a code, some 10 flops: bound by memory, about 1 us per million on an H200.
#include "kernels/cuda/math.cuh"
#include "kernels/cuda_args.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kBlock = 128, kGroup = 32;
constexpr float kLargestE4m3 = 448;

__device__ inline float from_e4m3(unsigned code) {
  const unsigned magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return __uint_as_float(0x7fc00000u);
  const float small = static_cast<float>(magnitude) * 0x1p-9f;
  const float value = magnitude < 8 ? small : __uint_as_float((magnitude << 20) + (120u << 23));
  return (code & 0x80u) != 0 ? -value : value;
}

/// 0, 0.5, 1, 1.5, 2, 3, 4, 6.
__device__ inline float from_e2m1(unsigned code) {
  const unsigned m = code & 7u;
  const float value = m < 2 ? static_cast<float>(m) * 0.5f : static_cast<float>((2 + m % 2) << (m / 2)) * 0.25f;
  return (code & 8u) != 0 ? -value : value;
}

__device__ inline float from_e8m0(unsigned code) {
  if (code == 255) return __uint_as_float(0x7fc00000u);
  return code == 0 ? 0x1p-127f : __uint_as_float(code << 23);
}

__device__ inline unsigned to_e4m3(float x) {
  const unsigned sign = __float_as_uint(x) >> 24 & 0x80u;
  if (x != x) return sign | 0x7fu;
  const float size = fabsf(x);
  if (size >= kLargestE4m3) return sign | 0x7eu;
  if (size < 0x1p-6f) return sign | static_cast<unsigned>(__float2int_rn(size * 512.0f));
  const unsigned raw = __float_as_uint(size);
  return sign | (((raw + 0x7ffffu + (raw >> 20 & 1u)) >> 20) - (120u << 3));
}

__device__ inline unsigned to_e2m1(float x) {
  const float a = fabsf(x);
  if (a != a) return (__float_as_uint(x) >> 28 & 8u) | 7u;
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return (__float_as_uint(x) >> 28 & 8u) | static_cast<unsigned>(code);
}

/// The byte of a power of two: floor(log2(x)) + shift, `up` the next one unless x is one. x >= 0.
__device__ inline unsigned to_e8m0(float x, int shift, bool up) {
  const unsigned raw = __float_as_uint(x);
  if (raw >= 0x7f800000u) return 255;
  if (x == 0) return 127;
  int exponent = static_cast<int>(raw >> 23) + shift + (up && (raw & 0x7fffffu) != 0 ? 1 : 0);
  exponent = exponent < 0 ? 0 : exponent;
  return static_cast<unsigned>(exponent > 254 ? 254 : exponent);
}

/// NaN counts as the largest.
__device__ inline float larger_or_nan(float a, float b) { return a != a || b != b ? __uint_as_float(0x7fc00000u) : larger(a, b); }
__device__ inline float warp_magnitude(float x) {
  for (int other = 16; other > 0; other /= 2) x = larger_or_nan(x, __shfl_xor_sync(kAllLanes, x, other));
  return x;
}

__global__ void __launch_bounds__(kThreads) write_blocks_kernel(CudaQuantise a) {
  TROUPE_SHARED(float, warps, [kThreads / kWarp]);
  const std::int64_t row_begin = blockIdx.y * kBlock;
  const std::int64_t col_begin = blockIdx.x * kBlock;
  const auto each = [&](auto use) {
    for (std::int64_t i = threadIdx.x; i < kBlock * kBlock; i += kThreads) {
      const std::int64_t row = row_begin + i / kBlock;
      const std::int64_t col = col_begin + i % kBlock;
      if (row < a.rows && col < a.cols) use(row * a.cols + col);
    }
  };
  float most = 0;
  each([&](std::int64_t i) { most = larger(most, fabsf(a.x[i]) == kInfinity ? 0.0f : fabsf(a.x[i])); });
  if (a.layout == CudaQuantised::kFp8BlocksE8)
    each([&](std::int64_t i) { most = larger_or_nan(most, fabsf(a.x[i])); });
  most = warp_magnitude(most);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = most;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) most = larger_or_nan(most, warps[w]);
  const std::int64_t at = blockIdx.y * ((a.cols + kBlock - 1) / kBlock) + blockIdx.x;
  float scale = most == 0 ? 1.0f : most / kLargestE4m3;
  if (a.layout == CudaQuantised::kFp8BlocksE8) {
    const unsigned code = to_e8m0(scale, 0, true);
    scale = from_e8m0(code);
    if (threadIdx.x == 0) static_cast<std::uint8_t*>(a.scales)[at] = static_cast<std::uint8_t>(code);
  } else if (threadIdx.x == 0) {
    static_cast<float*>(a.scales)[at] = scale;
  }
  each([&](std::int64_t i) { a.codes[i] = static_cast<std::uint8_t>(to_e4m3(a.x[i] / scale)); });
}

/// A warp per group of 32; all lanes of the last warps without a group end together.
__global__ void __launch_bounds__(kThreads) write_groups_kernel(CudaQuantise a) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.rows * a.cols) return;
  const bool fp8 = a.layout == CudaQuantised::kMxFp8;
  const float x = a.x[i];
  const unsigned code = to_e8m0(warp_magnitude(fabsf(x)), fp8 ? -8 : -2, false);
  if (i % kGroup == 0) static_cast<std::uint8_t*>(a.scales)[i / kGroup] = static_cast<std::uint8_t>(code);
  const float scaled = x / from_e8m0(code);
  if (fp8) {
    a.codes[i] = static_cast<std::uint8_t>(to_e4m3(scaled));
    return;
  }
  const unsigned mine = to_e2m1(scaled);
  const unsigned other = __shfl_xor_sync(kAllLanes, mine, 1);
  if (i % 2 == 0) a.codes[i / 2] = static_cast<std::uint8_t>(mine | other << 4);
}

__global__ void __launch_bounds__(kThreads) read_kernel(CudaQuantise a) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.rows * a.cols) return;
  const std::int64_t row = i / a.cols;
  const std::int64_t col = i % a.cols;
  const bool blocks = a.layout == CudaQuantised::kFp8Blocks || a.layout == CudaQuantised::kFp8BlocksE8;
  const std::int64_t at = blocks ? row / kBlock * ((a.cols + kBlock - 1) / kBlock) + col / kBlock : i / kGroup;
  const float scale = a.layout == CudaQuantised::kFp8Blocks ? static_cast<const float*>(a.scales)[at]
                                                            : from_e8m0(static_cast<const std::uint8_t*>(a.scales)[at]);
  const float value = a.layout == CudaQuantised::kMxFp4
                          ? from_e2m1(i % 2 == 0 ? a.codes[i / 2] & 15u : static_cast<unsigned>(a.codes[i / 2]) >> 4)
                          : from_e4m3(a.codes[i]);
  a.x[a.transposed ? col * a.rows + row : i] = value * scale;
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_quantise(const troupe::kernels::CudaQuantise* args, void* stream) {
  using namespace troupe::kernels;
  const CudaQuantise& a = *args;
  if (a.layout == CudaQuantised::kFp8Blocks || a.layout == CudaQuantised::kFp8BlocksE8)
    return cuda::launch(cuda::write_blocks_kernel,
                        {cuda::pieces(a.cols, cuda::kBlock), cuda::pieces(a.rows, cuda::kBlock)},
                        {cuda::kThreads, 1, 1}, 0, stream, a);
  if (a.cols % cuda::kGroup != 0) return "quantise: columns must be a multiple of 32";
  return cuda::launch(cuda::write_groups_kernel, {cuda::pieces(a.rows * a.cols, cuda::kThreads)},
                      {cuda::kThreads, 1, 1}, 0, stream, a);
}

TROUPE_EXPORT const char* troupe_cuda_dequantise(const troupe::kernels::CudaQuantise* args, void* stream) {
  using namespace troupe::kernels;
  return cuda::launch(cuda::read_kernel, {cuda::pieces(args->rows * args->cols, cuda::kThreads)},
                      {cuda::kThreads, 1, 1}, 0, stream, *args);
}
