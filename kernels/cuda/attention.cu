// Attention over rows and KV pages on the GPU, forward. Bits: the CPU's (attention.h), decoding and prefilling alike: a
// score is one chain over the channels, the maximum exact, the sum of exponentials has 64 lanes by key index, the output
// is one chain over the keys. Hence two passes over the keys: the first finds the maximum.
//
// A block takes one kv head and a tile of (query, head of its group) pairs, 64 of them or 16 where a segment has few; all
// read the same tile of 64 keys. Flops: 6 hd per (query head, visible key), float32 on the ordinary cores (67 TF on an
// H200; loads from shared memory hold it to about half). Memory: keys twice and values once per tile of pairs. A block
// takes some 6 us per 64 keys however few its pairs are; with a workspace, decoding goes to attention_decode.cu instead.
#include "kernels/attention.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda_args.h"

namespace troupe::kernels::cuda {
namespace {

/// Fills `tile` with keys [first, first + count) of a segment. Tiles are asked for in order, `first` from 0 upwards. Ends
/// with a barrier, so that what came before is done when the tile is loaded.
__device__ void find_keys(const CudaAttention& a, const AttentionSegment& s, std::int64_t kv_head, std::int64_t first,
                          std::int64_t count, KeyTile& tile) {
  const std::int64_t turn = first / kTileKeys % 2;
  if (threadIdx.x < count) {
    std::int64_t span = first == 0 ? 0 : tile.span[turn];
    std::int64_t before = first == 0 ? 0 : tile.before[turn];
    const std::int64_t key = first + threadIdx.x;
    for (; key >= before + s.spans[span].count; ++span) before += s.spans[span].count;
    place_key(s.spans[span], key - before, kv_head, a.shape.head_dim, threadIdx.x, tile);
    if (threadIdx.x == count - 1) {
      tile.span[1 - turn] = span;
      tile.before[1 - turn] = before;
    }
  }
  __syncthreads();
}

/// Shared memory of a block: queries, one tile of keys or values, probabilities.
template <int kPairs>
constexpr std::int64_t block_floats(std::int64_t hd) {
  return (kSide * kPairs + kTileKeys) * (hd + 1) + kSide * kPairs * kTileKeys;
}

/// A thread's kPairs pairs of the block's tile, ty * kPairs + i.
template <int kPairs>
struct Pairs {
  std::int64_t row[kPairs], head[kPairs];
  std::int64_t visible[kPairs];  ///< Keys; 0: no pair.
};

template <int kPairs>
__device__ Pairs<kPairs> my_pairs(const CudaAttention& a, const AttentionSegment& s, std::int64_t keys) {
  const std::int64_t group = a.shape.heads / a.shape.kv_heads;
  Pairs<kPairs> p;
  for (int i = 0; i < kPairs; ++i) {
    const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * kSide * kPairs + ty() * kPairs + i;
    p.row[i] = pair / group;
    p.head[i] = blockIdx.y * group + pair % group;
    p.visible[i] = p.row[i] < s.rows ? keys - s.rows + p.row[i] + 1 : 0;
  }
  return p;
}

template <int kPairs>
__device__ void load_queries(const CudaAttention& a, const AttentionSegment& s, float* q) {
  const std::int64_t group = a.shape.heads / a.shape.kv_heads;
  const std::int64_t hd = a.shape.head_dim;
  const std::int64_t stride = s.q_stride == 0 ? a.shape.heads * hd : s.q_stride;
  for (std::int64_t i = threadIdx.x; i < kSide * kPairs * hd; i += kTileThreads) {
    const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * kSide * kPairs + i / hd;
    const std::int64_t row = pair / group;
    const float* from = s.q + row * stride + (blockIdx.y * group + pair % group) * hd;
    q[i / hd * (hd + 1) + i % hd] = row < s.rows ? from[i % hd] * a.shape.scale : 0.0f;
  }
}

/// acc[i][j] += p[pair i][t] v[t][tx + 16 j], t ascending over the keys that the pair sees.
template <int kPairs, int kChunks>
__device__ void add_values(const float* p, const float* v, int hd, const std::int64_t (&visible)[kPairs],
                           std::int64_t first, std::int64_t count, float (&acc)[kPairs][kChunks]) {
  for (std::int64_t t = 0; t < count; ++t) {
    float value[kChunks];
#pragma unroll
    for (int j = 0; j < kChunks; ++j) value[j] = tx() + kSide * j < hd ? v[t * (hd + 1) + tx() + kSide * j] : 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (first + t >= visible[i]) continue;
      const float weight = p[(ty() * kPairs + i) * kTileKeys + t];
#pragma unroll
      for (int j = 0; j < kChunks; ++j) acc[i][j] = fmaf(weight, value[j], acc[i][j]);
    }
  }
}

template <int kPairs, int kChunks>
__global__ void __launch_bounds__(kTileThreads, 1) forward_kernel(CudaAttention a) {
  TROUPE_DYNAMIC_SHARED(float, memory);
  TROUPE_SHARED(KeyTile, tile, [1]);
  const AttentionSegment& s = a.segments[blockIdx.z];
  const int hd = static_cast<int>(a.shape.head_dim);
  const std::int64_t group = a.shape.heads / a.shape.kv_heads;
  const std::int64_t first_pair = static_cast<std::int64_t>(blockIdx.x) * kSide * kPairs;
  if (first_pair >= s.rows * group) return;  // the whole block
  float* q = memory;
  float* kv = q + kSide * kPairs * (hd + 1);
  float* p = kv + kTileKeys * (hd + 1);
  const std::int64_t keys = keys_of(s);
  const std::int64_t last_pair = first_pair + kSide * kPairs < s.rows * group ? first_pair + kSide * kPairs : s.rows * group;
  const std::int64_t seen = keys - s.rows + (last_pair - 1) / group + 1;  // by the last pair
  const Pairs<kPairs> mine = my_pairs<kPairs>(a, s, keys);
  load_queries<kPairs>(a, s, q);
  float most[kPairs];
  for (int i = 0; i < kPairs; ++i) most[i] = -kInfinity;
  float score[kPairs][kKeysEach];
  for (std::int64_t first = 0; first < seen; first += kTileKeys) {
    const std::int64_t count = seen - first < kTileKeys ? seen - first : kTileKeys;
    find_keys(a, s, blockIdx.y, first, count, tile[0]);
    load_found(tile[0], false, count, hd, kv);
    dot_tile<kPairs>(q, kv, hd, 1.0f, score);
    for (int i = 0; i < kPairs; ++i)
      for (int j = 0; j < kKeysEach; ++j)
        if (first + tx() + kSide * j < mine.visible[i]) most[i] = larger(most[i], score[i][j]);
  }
  for (int i = 0; i < kPairs; ++i) most[i] = max_of_16(most[i]);
  float lanes[kPairs][kKeysEach] = {};
  float acc[kPairs][kChunks] = {};
  for (std::int64_t first = 0; first < seen; first += kTileKeys) {
    const std::int64_t count = seen - first < kTileKeys ? seen - first : kTileKeys;
    find_keys(a, s, blockIdx.y, first, count, tile[0]);
    load_found(tile[0], false, count, hd, kv);
    dot_tile<kPairs>(q, kv, hd, 1.0f, score);
    for (int i = 0; i < kPairs; ++i)
      for (int j = 0; j < kKeysEach; ++j) {
        if (first + tx() + kSide * j >= mine.visible[i]) continue;
        const float e = exp_of(score[i][j] - most[i]);
        lanes[i][j] += e;
        p[(ty() * kPairs + i) * kTileKeys + tx() + kSide * j] = e;
      }
    __syncthreads();
    load_found(tile[0], true, count, hd, kv);
    add_values<kPairs, kChunks>(p, kv, hd, mine.visible, first, count, acc);
  }
  for (int i = 0; i < kPairs; ++i) {
    const float sum = sum_of_16((lanes[i][0] + lanes[i][1]) + (lanes[i][2] + lanes[i][3]));
    if (mine.visible[i] == 0) continue;
    const float inverse = 1.0f / sum;
    float* out = s.out + mine.row[i] * (s.out_stride == 0 ? a.shape.heads * hd : s.out_stride) + mine.head[i] * hd;
#pragma unroll
    for (int j = 0; j < kChunks; ++j)
      if (tx() + kSide * j < hd) out[tx() + kSide * j] = acc[i][j] * inverse;
    if (s.lse != nullptr && tx() == 0)
      s.lse[mine.row[i] * a.shape.heads + mine.head[i]] = most[i] + (sum == sum ? log_of(sum) : sum);
  }
}

template <int kPairs>
const char* forward(const CudaAttention& a, void* stream) {
  const std::int64_t pairs = a.max_rows * (a.shape.heads / a.shape.kv_heads);
  const Blocks blocks{pieces(pairs, kSide * kPairs), a.shape.kv_heads, a.count};
  const auto bytes = static_cast<std::size_t>(block_floats<kPairs>(a.shape.head_dim)) * sizeof(float);
  const int chunks = chunks_for(a.shape.head_dim);
  if (chunks == 4) return launch(forward_kernel<kPairs, 4>, blocks, {kTileThreads, 1, 1}, bytes, stream, a);
  if (chunks == 8) return launch(forward_kernel<kPairs, 8>, blocks, {kTileThreads, 1, 1}, bytes, stream, a);
  return launch(forward_kernel<kPairs, 16>, blocks, {kTileThreads, 1, 1}, bytes, stream, a);
}

/// A thread per number of a token's keys and values.
__global__ void __launch_bounds__(kTileThreads) store_kernel(CudaPageStores a) {
  const PageStore& s = a.stores[blockIdx.y];
  const std::int64_t hd = a.shape.head_dim;
  const std::int64_t width = a.shape.kv_heads * hd;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kTileThreads + threadIdx.x;
  if (i >= s.rows * width) return;
  const std::int64_t slot = s.first + i / width;
  const std::int64_t head = i % width / hd;
  const std::int64_t d = i % hd;
  const std::int64_t from = i / width * s.stride + i % width;
  s.page.k[(head * s.page.capacity + slot / 16 * 16) * hd + d * 16 + slot % 16] = s.k[from];
  s.page.v[(head * s.page.capacity + slot) * hd + d] = s.v[from];
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_attention_forward(const troupe::kernels::CudaAttention* args, void* stream) {
  using namespace troupe::kernels;
  if (args->shape.precision != Precision::kFloat32) return "attention_forward: float32 only";
  CudaAttention a = *args;
  a.shape = cuda::with_scale(a.shape);
  const std::int64_t pairs = a.max_rows * (a.shape.heads / a.shape.kv_heads);
  if (pairs <= cuda::kDecodePairs && a.workspace != nullptr) return cuda::decode(a, stream);
  return pairs <= 32 ? cuda::forward<1>(a, stream) : cuda::forward<4>(a, stream);
}

TROUPE_EXPORT const char* troupe_cuda_store_in_pages(const troupe::kernels::CudaPageStores* args, void* stream) {
  using namespace troupe::kernels;
  const std::int64_t numbers = args->max_rows * args->shape.kv_heads * args->shape.head_dim;
  return cuda::launch(cuda::store_kernel, {cuda::pieces(numbers, cuda::kTileThreads), args->count},
                      {cuda::kTileThreads, 1, 1}, 0, stream, *args);
}
