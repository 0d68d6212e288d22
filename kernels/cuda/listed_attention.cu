// Attention over listed rows on the GPU: windows, sinks, compressed entries. A score has 16 lanes over the channels; the
// sum of exponentials has 64 lanes by place in the list, whose last term is the sink; the output is one chain over the
// list, multiplied by the inverse of that sum at its end. A query's bits depend on the query and on what it sees.
//
// A block per (query, head). Per row seen it reads key_dim + value_dim floats (shared by the heads of a group and by
// neighbouring queries through L2) and makes 2 (key_dim + value_dim) flops: bound by L2 where lists are short.
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

/// scores[i] = q . key i * scale, by half-warps, a lane per channel modulo 16.
__device__ void score_all(const ListedShape& shape, const float* q, const Seen& seen, std::int64_t kv_head,
                          float* scores) {
  const unsigned lane = threadIdx.x % 16;
  for (std::int64_t first = 0; first < seen.count; first += kThreads / 16) {
    const std::int64_t i = first + threadIdx.x / 16;
    float sum = 0;
    if (i < seen.count) {
      const float* key = seen.row(i) + kv_head * shape.key_dim;
      for (std::int64_t d = lane; d < shape.key_dim; d += 16) sum = fmaf(q[d], key[d], sum);
    }
    sum = sum_of_16(sum) * shape.scale;
    if (i < seen.count && lane == 0) scores[i] = sum;
  }
}

/// scores[0, n) -> exp(score - maximum); returns their sum, in every thread.
__device__ float softmax_sum(float* scores, std::int64_t n) {
  TROUPE_SHARED(float, lanes, [64]);
  float most = -kInfinity;
  for (std::int64_t i = threadIdx.x; i < n; i += kThreads) most = larger(most, scores[i]);
  most = max_of_block<kThreads>(most);
  if (threadIdx.x < 64) {
    float sum = 0;
    for (std::int64_t i = threadIdx.x; i < n; i += 64) {
      scores[i] = exp_of(scores[i] - most);
      sum += scores[i];
    }
    lanes[threadIdx.x] = sum;
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % kWarp;
  return sum_of_64(lanes[lane], lanes[lane + kWarp]);
}

__global__ void __launch_bounds__(kThreads) listed_kernel(CudaListedAttention a) {
  TROUPE_DYNAMIC_SHARED(float, scores);
  const ListedSegment& s = a.segments[blockIdx.z];
  const std::int64_t row = blockIdx.x;
  if (row >= s.rows) return;  // the whole block
  const ListedShape& shape = a.shape;
  const std::int64_t head = blockIdx.y;
  const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const Seen seen = seen_by(s, row, shape.window);
  score_all(shape, s.q + row * s.q_stride + head * shape.key_dim, seen, kv_head, scores);
  if (shape.sinks != nullptr && threadIdx.x == 0) scores[seen.count] = shape.sinks[head];
  __syncthreads();
  const float inverse = 1.0f / softmax_sum(scores, seen.count + (shape.sinks != nullptr ? 1 : 0));
  for (std::int64_t d = threadIdx.x; d < shape.value_dim; d += kThreads) {
    float out = 0;
    for (std::int64_t i = 0; i < seen.count; ++i)
      out = fmaf(scores[i], seen.row(i)[shape.value_offset + kv_head * shape.value_dim + d], out);
    s.out[row * s.out_stride + head * shape.value_dim + d] = out * inverse;
  }
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_listed_attention(const troupe::kernels::CudaListedAttention* args, void* stream) {
  using namespace troupe::kernels;
  if (args->max_seen > cuda::kMaxSeen) return "listed_attention: a query sees more than 50000 rows";
  return cuda::launch(cuda::listed_kernel, {args->max_rows, args->shape.heads, args->count}, {cuda::kThreads, 1, 1},
                      static_cast<std::size_t>(args->max_seen + 1) * sizeof(float), stream, *args);
}
