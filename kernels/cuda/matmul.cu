// Products of matrices on the ordinary cores: linear layers, experts, gradients. Bits: the CPU's (gemm.h), in float32
// and in bfloat16, whatever the numbers of rows: four chains over the fixed quarters of K, summed (0 + 1) + (2 + 3);
// gradients of weights: chains over blocks of rows, added in order.
//
// A block of 256 threads makes a tile of y, in four groups of 64 that each sum one chain: so few rows (decoding) still
// give four times the work in flight. Flops 2 M N K at up to 67 TF on an H200 (bfloat16: emulated, the same rate); memory:
// x once per 64 columns and W once per tile of rows, mostly from L2; decoding is bound by reading W, 4 bytes a weight at
// 4.8 TB/s. Where bits need not be the CPU's, matmul_tensor and matmul_library are ten times as fast in bfloat16.
#include "kernels/cuda/bfloat16.cuh"
#include "kernels/cuda_args.h"
#include "kernels/gemm.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kGroups = 4;         // of threads, a chain each
constexpr int kGroupThreads = 64;
constexpr int kStep = 16;          // of the summed dimension, in shared memory at a time

/// A tile: kRows x kCols threads, each kRowsEach x kColsEach numbers.
template <int kRowThreads, int kRowsEach, int kColsEach>
struct Tile {
  static constexpr int kColThreads = kGroupThreads / kRowThreads;
  static constexpr int kEachRow = kRowsEach, kEachCol = kColsEach;
  static constexpr int kRows = kRowThreads * kRowsEach, kCols = kColThreads * kColsEach;
  static constexpr int kFloats = kGroups * kStep * (kRows + 4 + kCols + 4);
  static constexpr int kPartials = kGroups * kRows * kCols;
  static constexpr std::size_t kBytes = (kFloats > kPartials ? kFloats : kPartials) * sizeof(float);
};
using Wide = Tile<8, 8, 8>;   // 64 x 64
using Flat = Tile<4, 4, 4>;   // 16 x 64, for few rows
using Pairs = Tile<8, 4, 4>;  // 32 x 32, for bfloat16: two more sums per number

/// One operand: number (i, t) of it, t being summed over, at data[i * row + t * step].
struct Operand {
  const float* data;
  std::int64_t row, step, rows;
};

struct Work {
  Operand a, b;
  float* y;
  std::int64_t ldy;
  std::int64_t pieces;           ///< Chains, or blocks of rows of a gradient.
  std::int64_t bounds[5];        ///< Of the chains.
  std::int64_t block, total;     ///< Of a gradient: rows of a block, all rows.
  bool add;                      ///< A gradient that is added to y.
  const std::int32_t* group_ends;
  std::int64_t group_weights;    ///< Floats from expert to expert.
};

/// Rows [first, first + count) of an operand, [begin, begin + kStep) of the sum, as [kStep][rows]; a group's threads.
template <int kRows, bool kBfloat16>
__device__ void load_part(const Operand& o, std::int64_t first, std::int64_t begin, std::int64_t end, int thread,
                          float* to) {
  for (int i = thread; i < kRows * kStep; i += kGroupThreads) {
    const int row = o.step == 1 ? i / kStep : i % kRows;
    const int t = o.step == 1 ? i % kStep : i / kRows;
    float x = 0;
    if (first + row < o.rows && begin + t < end) x = o.data[(first + row) * o.row + (begin + t) * o.step];
    to[t * (kRows + 4) + row] = kBfloat16 ? __uint_as_float(bfloat16_bits(x) << 16) : x;
  }
}

/// A thread's sums on their way.
template <class T, bool kBfloat16>
struct Sums {
  float chain[T::kEachRow][T::kEachCol];

  __device__ void clear(bool) {
    for (int i = 0; i < T::kEachRow; ++i)
      for (int j = 0; j < T::kEachCol; ++j) chain[i][j] = 0;
  }
  __device__ void add(const float* a, const float* b, int) {
#pragma unroll
    for (int i = 0; i < T::kEachRow; ++i)
#pragma unroll
      for (int j = 0; j < T::kEachCol; ++j) chain[i][j] = fmaf(a[i], b[j], chain[i][j]);
  }
  __device__ void fold() {}
};

/// bfloat16: the sums of even and of odd numbers of a block of 32, beside the chain of the blocks.
template <class T>
struct Sums<T, true> {
  float chain[T::kEachRow][T::kEachCol];
  float half[2][T::kEachRow][T::kEachCol];

  __device__ void clear(bool empty) {
    for (int i = 0; i < T::kEachRow; ++i)
      for (int j = 0; j < T::kEachCol; ++j) {
        chain[i][j] = empty ? -0.0f : 0.0f;
        half[0][i][j] = 0;
        half[1][i][j] = 0;
      }
  }
  __device__ void add(const float* a, const float* b, int t) {
#pragma unroll
    for (int i = 0; i < T::kEachRow; ++i)
#pragma unroll
      for (int j = 0; j < T::kEachCol; ++j) half[t % 2][i][j] = fma_flushing(a[i], b[j], half[t % 2][i][j]);
  }
  /// The end of a block of 32.
  __device__ void fold() {
    for (int i = 0; i < T::kEachRow; ++i)
      for (int j = 0; j < T::kEachCol; ++j) {
        chain[i][j] = add_flushing(chain[i][j], add_flushing(half[0][i][j], half[1][i][j]));
        half[0][i][j] = 0;
        half[1][i][j] = 0;
      }
  }
};

/// The chain [begin, end) of this group's thread; all groups make `steps` steps together.
template <class T, bool kBfloat16>
__device__ void sum_chain(const Operand& of_a, const Operand& of_b, std::int64_t first_row, std::int64_t first_col,
                          std::int64_t begin, std::int64_t end, std::int64_t steps, float* memory,
                          Sums<T, kBfloat16>& sums) {
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  float* a = memory + group * kStep * (T::kRows + 4 + T::kCols + 4);
  float* b = a + kStep * (T::kRows + 4);
  const float* my_a = a + thread / T::kColThreads * T::kEachRow;
  const float* my_b = b + thread % T::kColThreads * T::kEachCol;
  sums.clear(begin == end);
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::int64_t from = begin + step * kStep;
    if (from < end) {
      load_part<T::kRows, kBfloat16>(of_a, first_row, from, end, thread, a);
      load_part<T::kCols, kBfloat16>(of_b, first_col, from, end, thread, b);
    }
    __syncthreads();
    const int count = end - from >= kStep ? kStep : static_cast<int>(end > from ? end - from : 0);
    if (count == kStep) {
#pragma unroll
      for (int t = 0; t < kStep; ++t) sums.add(my_a + t * (T::kRows + 4), my_b + t * (T::kCols + 4), t);
    } else {
      for (int t = 0; t + 1 < count; t += 2) {
        sums.add(my_a + t * (T::kRows + 4), my_b + t * (T::kCols + 4), 0);
        sums.add(my_a + (t + 1) * (T::kRows + 4), my_b + (t + 1) * (T::kCols + 4), 1);
      }
      if (count % 2 == 1) sums.add(my_a + (count - 1) * (T::kRows + 4), my_b + (count - 1) * (T::kCols + 4), 0);
    }
    if (from < end && (step % 2 == 1 || from + kStep >= end)) sums.fold();
    __syncthreads();
  }
}

/// Where piece p begins; p = pieces: the end of the last.
__device__ inline std::int64_t bound(const Work& w, std::int64_t p) {
  if (w.block == 0) return w.bounds[p];
  return p * w.block < w.total ? p * w.block : w.total;
}

/// A thread's numbers of the tile, every kGroups * kGroupThreads-th; four partial sums each become one.
template <class T>
__device__ void combine(const Work& w, const float* partial, std::int64_t first_piece,
                        float (&total)[T::kPartials / kGroups / (kGroups * kGroupThreads)]) {
  constexpr int kNumbers = T::kPartials / kGroups;
  constexpr int kEach = kNumbers / (kGroups * kGroupThreads);
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const float* p = partial + threadIdx.x + r * kGroups * kGroupThreads;
    if (w.block == 0) {
      if (w.pieces == 4)
        total[r] = (p[0] + p[kNumbers]) + (p[2 * kNumbers] + p[3 * kNumbers]);
      else
        total[r] = w.pieces == 2 ? p[0] + p[kNumbers] : p[0];
      continue;
    }
    for (int q = 0; q < kGroups && first_piece + q < w.pieces; ++q) {
      const float sum = p[q * kNumbers];
      total[r] = first_piece + q == 0 && !w.add ? sum : total[r] + sum;
    }
  }
}

template <class T, bool kBfloat16>
__global__ void __launch_bounds__(kGroups* kGroupThreads) product_kernel(const Work w) {
  TROUPE_DYNAMIC_SHARED(float, memory);
  constexpr int kNumbers = T::kPartials / kGroups;
  constexpr int kEach = kNumbers / (kGroups * kGroupThreads);
  Operand a = w.a;
  Operand b = w.b;
  float* y = w.y;
  if (w.group_ends != nullptr) {
    const std::int64_t begin = blockIdx.z == 0 ? 0 : w.group_ends[blockIdx.z - 1];
    a.data += begin * a.row;
    a.rows = w.group_ends[blockIdx.z] - begin;
    b.data += blockIdx.z * w.group_weights;
    y += begin * w.ldy;
  }
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * T::kRows;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.x) * T::kCols;
  if (first_row >= a.rows) return;  // the whole block
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  float total[kEach];
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const int at = static_cast<int>(threadIdx.x) + r * kGroups * kGroupThreads;
    const std::int64_t row = first_row + at / T::kCols;
    const std::int64_t col = first_col + at % T::kCols;
    total[r] = w.add && row < a.rows && col < b.rows ? y[row * w.ldy + col] : 0.0f;
  }
  Sums<T, kBfloat16> sums;
  for (std::int64_t piece = 0; piece < w.pieces; piece += kGroups) {
    std::int64_t longest = 0;
    for (std::int64_t p = piece; p < piece + kGroups && p < w.pieces; ++p)
      longest = bound(w, p + 1) - bound(w, p) > longest ? bound(w, p + 1) - bound(w, p) : longest;
    const bool mine = piece + group < w.pieces;
    const std::int64_t begin = mine ? bound(w, piece + group) : 0;
    const std::int64_t end = mine ? bound(w, piece + group + 1) : 0;
    sum_chain<T, kBfloat16>(a, b, first_row, first_col, begin, end, (longest + kStep - 1) / kStep, memory, sums);
    float* partial = memory + group * kNumbers + thread / T::kColThreads * T::kEachRow * T::kCols +
                     thread % T::kColThreads * T::kEachCol;
#pragma unroll
    for (int i = 0; i < T::kEachRow; ++i)
#pragma unroll
      for (int j = 0; j < T::kEachCol; ++j) partial[i * T::kCols + j] = sums.chain[i][j];
    __syncthreads();
    combine<T>(w, memory, piece, total);
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const int at = static_cast<int>(threadIdx.x) + r * kGroups * kGroupThreads;
    const std::int64_t row = first_row + at / T::kCols;
    const std::int64_t col = first_col + at % T::kCols;
    if (row < a.rows && col < b.rows) y[row * w.ldy + col] = total[r];
  }
}

template <class T, bool kBfloat16>
const char* product_as(const Work& w, std::int64_t rows, std::int64_t groups, void* stream) {
  const Blocks blocks{pieces(w.b.rows, T::kCols), pieces(rows, T::kRows), groups};
  return launch(product_kernel<T, kBfloat16>, blocks, {kGroups * kGroupThreads, 1, 1}, T::kBytes, stream, w);
}

const char* product(const Work& w, Precision precision, std::int64_t rows, std::int64_t groups, void* stream) {
  if (precision == Precision::kBfloat16) return product_as<Pairs, true>(w, rows, groups, stream);
  return rows <= 32 ? product_as<Flat, false>(w, rows, groups, stream)
                    : product_as<Wide, false>(w, rows, groups, stream);
}

/// As chain_begin in gemm.h.
std::int64_t chain_bound(std::int64_t k, Precision precision, int q, int chains) {
  if (precision == Precision::kFloat32) return k * q / chains;
  const std::int64_t begin = (k + 31) / 32 * q / chains * 32;
  return begin < k ? begin : k;
}

const char* multiply(const CudaMatmul& args, std::int64_t groups, void* stream) {
  Work w{};
  w.a = {args.x, args.ldx == 0 ? args.k : args.ldx, 1, args.m};
  if (args.transposed)
    w.b = {args.w, 1, args.ldw == 0 ? args.n : args.ldw, args.n};
  else
    w.b = {args.w, args.ldw == 0 ? args.k : args.ldw, 1, args.n};
  w.y = args.y;
  w.ldy = args.ldy == 0 ? args.n : args.ldy;
  w.pieces = args.chains;
  for (int q = 0; q <= args.chains; ++q) w.bounds[q] = chain_bound(args.k, args.precision, q, args.chains);
  w.group_ends = args.group_ends;
  w.group_weights = args.n * args.k;
  const std::int64_t rows = args.max_group_rows == 0 ? args.m : args.max_group_rows;
  return product(w, args.precision, rows, groups, stream);
}

__global__ void __launch_bounds__(256) round_kernel(CudaRound a) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i < a.n) a.y[i] = static_cast<std::uint16_t>(bfloat16_bits(a.x[i]));
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_matmul(const troupe::kernels::CudaMatmul* args, void* stream) {
  troupe::kernels::CudaMatmul a = *args;
  a.group_ends = nullptr;
  a.max_group_rows = 0;
  return troupe::kernels::cuda::multiply(a, 1, stream);
}

TROUPE_EXPORT const char* troupe_cuda_grouped_matmul(const troupe::kernels::CudaMatmul* args, void* stream) {
  if (args->group_ends == nullptr) return "grouped_matmul: the groups' ends must be given";
  return troupe::kernels::cuda::multiply(*args, args->groups, stream);
}

TROUPE_EXPORT const char* troupe_cuda_weight_gradient(const troupe::kernels::WeightGradient* args, void* stream) {
  using namespace troupe::kernels;
  cuda::Work w{};
  w.a = {args->dy, 1, args->ldy == 0 ? args->n : args->ldy, args->n};
  w.b = {args->x, 1, args->ldx == 0 ? args->k : args->ldx, args->k};
  w.y = args->dw;
  w.ldy = args->k;
  w.block = gradient_rows(args->precision);
  w.total = args->m;
  w.pieces = cuda::pieces(args->m, w.block);
  w.add = args->add;
  return cuda::product(w, args->precision, args->n, 1, stream);
}

TROUPE_EXPORT const char* troupe_cuda_round_bfloat16(const troupe::kernels::CudaRound* args, void* stream) {
  using namespace troupe::kernels;
  return cuda::launch(cuda::round_kernel, {cuda::pieces(args->n, 256)}, {256, 1, 1}, 0, stream, *args);
}
