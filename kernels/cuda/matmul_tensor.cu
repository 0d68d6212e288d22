// Products of bfloat16 on tensor cores, invariant to the batch: every number of y is summed by the same instructions
// over the same fixed quarters of K (gemm.h's, of blocks of 32), (0 + 1) + (2 + 3), whatever M and whoever computes it.
// Within an instruction (16 of K) the order is the hardware's own, so the bits are not the CPU's: trainer and generator
// must both use it.
//
// A block of 8 warps makes 128 x 64 of y, 32 of K at a time: the next part is read into registers while the present one
// is multiplied. Flops 2 M N K; reads x once per 64 columns, W once per 128 rows. What bounds it on an H200 is feeding
// `mma.sync` from shared memory, expected at 30-40 % of the 989 TF of bfloat16; matmul_library is the fast one.
#include "kernels/cuda/bfloat16.cuh"
#include "kernels/cuda_args.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kRows = 128, kCols = 64, kDepth = 32;  // of a block's tile
constexpr int kThreads = 256;
constexpr int kPitch = kDepth + 8;  // numbers from row to row in shared memory: fragments fall into different banks
constexpr int kChunk = 8;           // numbers in 16 bytes
constexpr int kRowTiles = 2, kColTiles = 4;  // of 16 x 8, per warp

using Numbers = float[kRowTiles][kColTiles][4];  // of a lane
template <class Use>
__device__ inline void each(Use use) {
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int j = 0; j < kColTiles; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) use(i, j, c);
}

struct Tensor {
  CudaTensorMatmul a;
  std::int64_t bounds[5];
};

/// A 16-byte piece of an operand on its way to shared memory.
struct Piece {
  const std::uint16_t* from;  ///< Row `row` of the operand; null behind its last.
  std::int64_t offset;        ///< Within kDepth.
  std::uint16_t* to;
};
__device__ inline Piece piece_of(const std::uint16_t* data, std::int64_t rows, std::int64_t k, std::int64_t first,
                                 int index, std::uint16_t* tile) {
  const int row = index / (kDepth / kChunk);
  const int offset = index % (kDepth / kChunk) * kChunk;
  return {first + row < rows ? data + (first + row) * k : nullptr, offset, tile + row * kPitch + offset};
}
/// 8 numbers at `at`, 0 behind `end` (both multiples of 8) or where the row is none.
__device__ inline float4 fetch(const Piece& p, std::int64_t at, std::int64_t end) {
  if (p.from == nullptr || at + p.offset >= end) return make_float4(0, 0, 0, 0);
  return *reinterpret_cast<const float4*>(p.from + at + p.offset);
}
__device__ inline void put(const Piece& p, float4 eight) { *reinterpret_cast<float4*>(p.to) = eight; }

__device__ inline std::uint32_t pair_at(const std::uint16_t* tile, int row, int k) {
  return *reinterpret_cast<const std::uint32_t*>(tile + row * kPitch + k);
}

/// acc += x W^T for the warp's 32 x 32 numbers and the kDepth of K in shared memory.
__device__ void multiply(const std::uint16_t* x, const std::uint16_t* w, int row, int col,
                         Numbers& acc) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    std::uint32_t a[kRowTiles][4];
    std::uint32_t b[kColTiles][2];
    const int at = k + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      a[i][0] = pair_at(x, row + 16 * i + lane / 4, at);
      a[i][1] = pair_at(x, row + 16 * i + lane / 4 + 8, at);
      a[i][2] = pair_at(x, row + 16 * i + lane / 4, at + 8);
      a[i][3] = pair_at(x, row + 16 * i + lane / 4 + 8, at + 8);
    }
#pragma unroll
    for (int j = 0; j < kColTiles; ++j) {
      b[j][0] = pair_at(w, col + 8 * j + lane / 4, at);
      b[j][1] = pair_at(w, col + 8 * j + lane / 4, at + 8);
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < kColTiles; ++j) mma_16816(acc[i][j], a[i], b[j]);
  }
}

__global__ void __launch_bounds__(kThreads) tensor_kernel(const Tensor t) {
  TROUPE_SHARED(float4, x_memory, [kRows * kPitch / kChunk]);
  TROUPE_SHARED(float4, w_memory, [kCols * kPitch / kChunk]);
  auto* x = reinterpret_cast<std::uint16_t*>(x_memory);
  auto* w = reinterpret_cast<std::uint16_t*>(w_memory);
  const CudaTensorMatmul& a = t.a;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kRows;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.x) * kCols;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / kWarp / 2 * 32;  // of the warp, within the tile
  const int col = thread / kWarp % 2 * 32;
  const Piece x0 = piece_of(a.x, a.m, a.k, first_row, thread, x);
  const Piece x1 = piece_of(a.x, a.m, a.k, first_row, thread + kThreads, x);
  const Piece w0 = piece_of(a.w, a.n, a.k, first_col, thread, w);
  Numbers first, third;  // 0 + 1; 2
  for (int q = 0; q < 4; ++q) {
    Numbers acc;
    each([&](int i, int j, int c) { acc[i][j][c] = 0; });
    const std::int64_t end = t.bounds[q + 1];
    float4 next[3] = {fetch(x0, t.bounds[q], end), fetch(x1, t.bounds[q], end), fetch(w0, t.bounds[q], end)};
    for (std::int64_t at = t.bounds[q]; at < end; at += kDepth) {
      __syncthreads();  // the last part was read
      put(x0, next[0]);
      put(x1, next[1]);
      put(w0, next[2]);
      __syncthreads();
      next[0] = fetch(x0, at + kDepth, end);
      next[1] = fetch(x1, at + kDepth, end);
      next[2] = fetch(w0, at + kDepth, end);
      multiply(x, w, row, col, acc);
    }
    each([&](int i, int j, int c) {
      if (q == 0) first[i][j][c] = acc[i][j][c];
      if (q == 1) first[i][j][c] += acc[i][j][c];
      if (q == 2) third[i][j][c] = acc[i][j][c];
      if (q == 3) first[i][j][c] += third[i][j][c] + acc[i][j][c];
    });
  }
  const int lane = thread % kWarp;
  each([&](int i, int j, int c) {
    const std::int64_t m = first_row + row + 16 * i + lane / 4 + c / 2 * 8;
    const std::int64_t n = first_col + col + 8 * j + lane % 4 * 2 + c % 2;
    if (m < a.m && n < a.n) a.y[m * a.n + n] = first[i][j][c];
  });
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_matmul_tensor(const troupe::kernels::CudaTensorMatmul* args, void* stream) {
  using namespace troupe::kernels;
  if (args->k % cuda::kChunk != 0) return "matmul_tensor: k must be a multiple of 8";
  cuda::Tensor t{*args, {}};
  const std::int64_t blocks = cuda::pieces(args->k, cuda::kDepth);
  for (int q = 0; q <= 4; ++q) t.bounds[q] = blocks * q / 4 * cuda::kDepth < args->k ? blocks * q / 4 * cuda::kDepth : args->k;
  return cuda::launch(cuda::tensor_kernel, {cuda::pieces(args->n, cuda::kCols), cuda::pieces(args->m, cuda::kRows)},
                      {cuda::kThreads, 1, 1}, 0, stream, t);
}
