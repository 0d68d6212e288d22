// Attention over listed rows on the GPU: windows, sinks, compressed entries. Bits: the CPU's (listed_attention.h): 16
// lanes over the channels, one chain over what a query sees, in float64 for the denominator; nothing fused.
//
// A block per (query, head). Per row seen it reads key_dim + value_dim floats (shared by the heads of a group and by
// neighbouring queries through L2) and makes 2 (key_dim + value_dim) flops. With a window of 128 and entries some
// hundred: short blocks, many of them; the chain of the denominator is about 4 ns a row seen.
#include "kernels/listed_attention.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda_args.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kMaxSeen = 50000;  // a pointer-free list of scores in shared memory

/// Row `index` of a concatenation of spans.
__device__ inline const float* row_of(const RowSpan* spans, std::int64_t index) {
  for (; index >= spans->count; ++spans) index -= spans->count;
  return spans->rows + index * spans->stride;
}

/// What one query sees: tokens [begin, end), then its chosen entries.
struct Seen {
  const ListedSegment& segment;
  std::int64_t begin, end, count;
  const std::int32_t* chosen;

  __device__ const float* row(std::int64_t i) const {
    if (i < end - begin) return row_of(segment.tokens, begin + i);
    return row_of(segment.entries, chosen[i - (end - begin)]);
  }
};

__device__ inline Seen seen_by(const ListedSegment& s, std::int64_t row, std::int64_t window) {
  const std::int64_t end = s.before + row + 1;
  const std::int64_t begin = window > 0 && end > window ? end - window : 0;
  const std::int32_t* chosen = s.chosen + row * s.chosen_max;
  std::int64_t entries = 0;
  while (entries < s.chosen_max && chosen[entries] >= 0) ++entries;
  return {s, begin, end, end - begin + entries, chosen};
}

/// The largest of a value per thread, in every thread.
__device__ float block_maximum(float value) {
  TROUPE_SHARED(float, warps, [kThreads / kWarp]);
  value = max_of_warp(value);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) value = larger(value, warps[w]);
  return value;
}

/// scores[i] = q . key i * scale, by half-warps, a lane per channel modulo 16; returns the largest, in every thread.
__device__ float score_all(const ListedShape& shape, const float* q, const Seen& seen, std::int64_t kv_head,
                           float* scores) {
  const unsigned lane = threadIdx.x % 16;
  float most = -kInfinity;
  for (std::int64_t first = 0; first < seen.count; first += kThreads / 16) {
    const std::int64_t i = first + threadIdx.x / 16;
    float sum = 0;
    if (i < seen.count) {
      const float* key = seen.row(i) + kv_head * shape.key_dim;
      for (std::int64_t d = lane; d < shape.key_dim; d += 16) sum += q[d] * key[d];
    }
    sum = sum_of_16(sum) * shape.scale;
    if (i >= seen.count) continue;
    if (lane == 0) scores[i] = sum;
    most = larger(most, sum);
  }
  return block_maximum(most);
}

__global__ void __launch_bounds__(kThreads) listed_kernel(CudaListedAttention a) {
  TROUPE_DYNAMIC_SHARED(float, scores);
  TROUPE_SHARED(float, inverse, [1]);
  const ListedSegment& s = a.segments[blockIdx.z];
  const std::int64_t row = blockIdx.x;
  if (row >= s.rows) return;  // the whole block
  const ListedShape& shape = a.shape;
  const std::int64_t head = blockIdx.y;
  const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const Seen seen = seen_by(s, row, shape.window);
  const float* q = s.q + row * s.q_stride + head * shape.key_dim;
  float most = score_all(shape, q, seen, kv_head, scores);
  if (shape.sinks != nullptr) most = larger(shape.sinks[head], most);
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < seen.count; i += kThreads) scores[i] = exp_of(scores[i] - most);
  __syncthreads();
  if (threadIdx.x == 0) {
    double sum = 0;
    for (std::int64_t i = 0; i < seen.count; ++i) sum += static_cast<double>(scores[i]);
    if (shape.sinks != nullptr) sum += static_cast<double>(exp_of(shape.sinks[head] - most));
    inverse[0] = static_cast<float>(1 / sum);
  }
  __syncthreads();
  for (std::int64_t first = 0; first < shape.value_dim; first += kThreads) {
    const std::int64_t d = first + threadIdx.x;
    if (d >= shape.value_dim) continue;
    float out = 0;
    for (std::int64_t i = 0; i < seen.count; ++i) {
      const float* v = seen.row(i) + shape.value_offset + kv_head * shape.value_dim;
      out += scores[i] * inverse[0] * v[d];
    }
    s.out[row * s.out_stride + head * shape.value_dim + d] = out;
  }
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_listed_attention(const troupe::kernels::CudaListedAttention* args, void* stream) {
  using namespace troupe::kernels;
  if (args->max_seen > cuda::kMaxSeen) return "listed_attention: a query sees more than 50000 rows";
  return cuda::launch(cuda::listed_kernel, {args->max_rows, args->shape.heads, args->count}, {cuda::kThreads, 1, 1},
                      static_cast<std::size_t>(args->max_seen) * sizeof(float), stream, *args);
}
