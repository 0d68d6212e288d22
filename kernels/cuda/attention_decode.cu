// Attention of few query rows over many keys: decoding. Bits: those of attention.cu, so the CPU's; only who computes what
// is different, in three steps over a workspace:
//   scores   a block per 64 keys and kv head: one chain over the channels each
//   softmax  a block per (row, head): exact maximum, exponentials in 64 lanes by key index
//   values   a block per 16 channels and kv head: one chain over the keys each, the next keys being read meanwhile
// Memory: keys and values once, 8 bytes per kv head, channel and key, and 12 bytes per (head, key) of workspace from L2:
// 4.8 TB/s on an H200 while the first step works; the third is bound by its chain, some 0.7 us per 128 keys, so that a
// single sequence of 2,048 keys takes about 20 us a layer, of 16,384 about 100.
#include "kernels/attention.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/logits.cuh"
#include "kernels/cuda_args.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kValueKeys = 128;   // of a tile of the third step
constexpr int kChannels = 16;     // of a block of the third step
constexpr int kPitch = kValueKeys + 4;  // from pair to pair of a tile of weights: on 16 bytes, in different banks
constexpr int kLoads = kValueKeys * kChannels / kTileThreads;  // of a thread, of a tile

struct Workspace {
  const float** values;  ///< [count][kv_heads][ld], where the channels of a key's value begin
  float* scores;         ///< [count][max_rows][heads][ld], then their exponentials
  float* inverse;        ///< [count][max_rows][heads], 1 / sum
  std::int64_t ld;
};

__host__ __device__ inline Workspace workspace_of(const CudaAttention& a) {
  const std::int64_t ld = (a.max_keys + kTileKeys - 1) / kTileKeys * kTileKeys;
  const std::int64_t pairs = a.count * a.max_rows * a.shape.heads;
  auto** values = static_cast<const float**>(a.workspace);
  auto* scores = reinterpret_cast<float*>(values + a.count * a.shape.kv_heads * ld);
  return {values, scores, scores + pairs * ld, ld};
}
/// A pair of this block's segment and kv head, as it is counted in the workspace.
__device__ inline std::int64_t pair_index(const CudaAttention& a, std::int64_t segment, std::int64_t row,
                                          std::int64_t head) {
  return (segment * a.max_rows + row) * a.shape.heads + head;
}

/// Keys [first, first + count) of a segment wherever they lie: spans are counted 256 at a time. Ends with a barrier.
__device__ void find_any(const CudaAttention& a, const AttentionSegment& s, std::int64_t kv_head, std::int64_t first,
                         std::int64_t count, KeyTile& tile) {
  TROUPE_SHARED(std::int64_t, counts, [kTileThreads]);
  std::int64_t left = first + threadIdx.x;  // keys before this thread's, in the spans to come
  bool looking = threadIdx.x < count;
  for (std::int64_t base = 0; base < s.span_count; base += kTileThreads) {
    if (base + threadIdx.x < s.span_count) counts[threadIdx.x] = s.spans[base + threadIdx.x].count;
    __syncthreads();
    const std::int64_t spans = s.span_count - base < kTileThreads ? s.span_count - base : kTileThreads;
    for (std::int64_t i = 0; i < spans && looking; ++i) {
      if (left < counts[i]) {
        place_key(s.spans[base + i], left, kv_head, a.shape.head_dim, threadIdx.x, tile);
        looking = false;
      }
      left -= counts[i];
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kTileThreads) scores_kernel(CudaAttention a) {
  TROUPE_DYNAMIC_SHARED(float, memory);
  TROUPE_SHARED(KeyTile, tile, [1]);
  const AttentionSegment& s = a.segments[blockIdx.z];
  const std::int64_t keys = keys_of(s);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTileKeys;
  if (s.rows == 0 || first >= keys) return;  // the whole block
  const int hd = static_cast<int>(a.shape.head_dim);
  const std::int64_t group = a.shape.heads / a.shape.kv_heads;
  const std::int64_t count = keys - first < kTileKeys ? keys - first : kTileKeys;
  const Workspace w = workspace_of(a);
  float* q = memory;
  float* k = q + kDecodePairs * (hd + 1);
  for (std::int64_t i = threadIdx.x; i < kDecodePairs * hd; i += kTileThreads) {
    const std::int64_t row = i / hd / group;
    const float* from = s.q + row * (s.q_stride == 0 ? a.shape.heads * hd : s.q_stride) +
                        (blockIdx.y * group + i / hd % group) * hd;
    q[i / hd * (hd + 1) + i % hd] = row < s.rows ? from[i % hd] * a.shape.scale : 0.0f;
  }
  find_any(a, s, blockIdx.y, first, count, tile[0]);
  if (threadIdx.x < count)
    w.values[(blockIdx.z * a.shape.kv_heads + blockIdx.y) * w.ld + first + threadIdx.x] = tile[0].v[threadIdx.x];
  load_found(tile[0], false, count, hd, k);
  float score[1][kKeysEach];
  dot_tile<1>(q, k, hd, 1.0f, score);
  if (ty() / group >= s.rows) return;
  float* scores = w.scores + pair_index(a, blockIdx.z, ty() / group, blockIdx.y * group + ty() % group) * w.ld;
  for (int j = 0; j < kKeysEach; ++j)
    if (tx() + kSide * j < count) scores[first + tx() + kSide * j] = score[0][j];
}

/// Keys that a row sees, of a segment of `keys`.
__device__ inline std::int64_t visible_to(const AttentionSegment& s, std::int64_t keys, std::int64_t row) {
  return row < s.rows ? keys - s.rows + row + 1 : 0;
}

__global__ void __launch_bounds__(kRowThreads) softmax_kernel(CudaAttention a) {
  const AttentionSegment& s = a.segments[blockIdx.z];
  const std::int64_t row = blockIdx.y;
  const std::int64_t head = blockIdx.x;
  const std::int64_t visible = visible_to(s, keys_of(s), row);
  if (visible == 0) return;  // the whole block
  const Workspace w = workspace_of(a);
  const std::int64_t pair = pair_index(a, blockIdx.z, row, head);
  float* scores = w.scores + pair * w.ld;
  const float most = row_maximum(scores, visible);
  const RowSums sums = sum_exponentials(scores, visible, 1.0f, most, false,
                                        [scores](std::int64_t i, float e) { scores[i] = e; });
  if (threadIdx.x != 0) return;
  w.inverse[pair] = 1.0f / sums.sum;
  if (s.lse != nullptr)
    s.lse[row * a.shape.heads + head] = most + (sums.sum == sums.sum ? log_of(sums.sum) : sums.sum);
}

/// A thread's part of the next tile, on its way through registers: values of one channel, weights of some pair.
struct NextTile {
  float value[kLoads], weight[kLoads];
};
__device__ inline void fetch(const CudaAttention& a, const AttentionSegment& s, const Workspace& w, std::int64_t keys,
                             std::int64_t first, NextTile& next) {
  const std::int64_t group = a.shape.heads / a.shape.kv_heads;
  const float* const* rows = w.values + (blockIdx.z * a.shape.kv_heads + blockIdx.y) * w.ld;
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kChannels + tx();
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const std::int64_t key = first + ty() + kSide * i;
    next.value[i] = key < keys ? rows[key][channel] : 0.0f;
    const std::int64_t at = threadIdx.x + static_cast<std::int64_t>(kTileThreads) * i;
    const std::int64_t pair = at / kValueKeys;
    const std::int64_t of = first + at % kValueKeys;
    const std::int64_t row = pair / group;
    next.weight[i] = of < visible_to(s, keys, row)
                         ? w.scores[pair_index(a, blockIdx.z, row, blockIdx.y * group + pair % group) * w.ld + of]
                         : 0.0f;
  }
}

/// acc += weights . values over the first n keys of a tile, ascending.
__device__ inline float add_tile(const float* weights, const float* values, std::int64_t n, float acc) {
  std::int64_t t = 0;
  for (; t + 4 <= n; t += 4) {
    const float4 four = *reinterpret_cast<const float4*>(weights + t);
    acc = fmaf(four.x, values[t * kChannels], acc);
    acc = fmaf(four.y, values[(t + 1) * kChannels], acc);
    acc = fmaf(four.z, values[(t + 2) * kChannels], acc);
    acc = fmaf(four.w, values[(t + 3) * kChannels], acc);
  }
  for (; t < n; ++t) acc = fmaf(weights[t], values[t * kChannels], acc);
  return acc;
}

__global__ void __launch_bounds__(kTileThreads) values_kernel(CudaAttention a) {
  TROUPE_SHARED(float4, weight_memory, [kDecodePairs * kPitch / 4]);
  TROUPE_SHARED(float, values, [kValueKeys * kChannels]);
  auto* weights = reinterpret_cast<float*>(weight_memory);
  const AttentionSegment& s = a.segments[blockIdx.z];
  if (s.rows == 0) return;  // the whole block
  const std::int64_t keys = keys_of(s);
  const std::int64_t group = a.shape.heads / a.shape.kv_heads;
  const Workspace w = workspace_of(a);
  const std::int64_t row = ty() / group;  // of this thread's pair
  const std::int64_t head = blockIdx.y * group + ty() % group;
  const std::int64_t visible = visible_to(s, keys, row);
  float acc = 0;
  NextTile next;
  fetch(a, s, w, keys, 0, next);
  for (std::int64_t first = 0; first < keys; first += kValueKeys) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      values[(ty() + kSide * i) * kChannels + tx()] = next.value[i];
      const int at = static_cast<int>(threadIdx.x) + kTileThreads * i;
      weights[at / kValueKeys * kPitch + at % kValueKeys] = next.weight[i];
    }
    __syncthreads();
    if (first + kValueKeys < keys) fetch(a, s, w, keys, first + kValueKeys, next);
    const std::int64_t seen = visible - first < kValueKeys ? visible - first : kValueKeys;
    acc = add_tile(weights + ty() * kPitch, values + tx(), seen, acc);
    __syncthreads();
  }
  if (row >= s.rows) return;
  const std::int64_t stride = s.out_stride == 0 ? a.shape.heads * a.shape.head_dim : s.out_stride;
  s.out[row * stride + head * a.shape.head_dim + static_cast<std::int64_t>(blockIdx.x) * kChannels + tx()] =
      acc * w.inverse[pair_index(a, blockIdx.z, row, head)];
}

}  // namespace

const char* decode(const CudaAttention& a, void* stream) {
  const std::int64_t hd = a.shape.head_dim;
  const auto bytes = static_cast<std::size_t>((kDecodePairs + kTileKeys) * (hd + 1)) * sizeof(float);
  const dim3 threads{kTileThreads, 1, 1};
  if (const char* refused = launch(scores_kernel, {pieces(a.max_keys, kTileKeys), a.shape.kv_heads, a.count}, threads,
                                   bytes, stream, a))
    return refused;
  if (const char* refused = launch(softmax_kernel, {a.shape.heads, a.max_rows, a.count}, {kRowThreads, 1, 1}, 0, stream, a))
    return refused;
  return launch(values_kernel, {hd / kChannels, a.shape.kv_heads, a.count}, threads, 0, stream, a);
}

}  // namespace troupe::kernels::cuda
