// Backward pass of attention on the GPU. Bits: the CPU's (attention.h): dq is one chain over the keys; dk and dv are one
// chain over the segments that share the rows, the heads of the group and the query rows, beginning with what is there.
//
// Two kernels, neither with atomics: one block per 32 query rows of a head makes dq, one per 64 keys of a kv head makes
// dk and dv; both make the probabilities anew. Flops: 14 hd per (query head, visible key), float32 on the ordinary cores
// (67 TF on an H200, loads from shared memory hold it to about a third); memory is far below that.
#include "kernels/attention.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda_args.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kRowsEach = 2;                   // query rows of a thread
constexpr int kTileRows = kSide * kRowsEach;   // of a block at a time

/// Shared memory of a block.
struct Tiles {
  float *q, *dout;   ///< [kTileRows][hd + 1]
  float *k, *v;      ///< [kTileKeys][hd + 1]
  float *p, *ds;     ///< [kTileRows][kTileKeys]
};
constexpr std::int64_t tile_floats(std::int64_t hd) {
  return 2 * (kTileRows + kTileKeys) * (hd + 1) + 2 * kTileRows * kTileKeys;
}
__device__ inline Tiles tiles_in(float* memory, int hd) {
  Tiles t;
  t.q = memory;
  t.dout = t.q + kTileRows * (hd + 1);
  t.k = t.dout + kTileRows * (hd + 1);
  t.v = t.k + kTileKeys * (hd + 1);
  t.p = t.v + kTileKeys * (hd + 1);
  t.ds = t.p + kTileRows * kTileKeys;
  return t;
}

/// What a row's slopes need, of a thread's rows ty * kRowsEach + i of a tile.
struct RowFacts {
  float delta[kRowsEach], lse[kRowsEach];
  std::int64_t visible[kRowsEach];  ///< Keys, the prefix included; 0: no row.
};

/// Loads q and dout of rows [begin, begin + kTileRows) of a head, and makes delta = dout . out: 16 lanes by channel.
__device__ RowFacts load_tile_rows(const CudaAttentionGrad& a, const AttentionGradSegment& s, std::int64_t head,
                                   std::int64_t begin, const Tiles& tiles) {
  const int hd = static_cast<int>(a.shape.head_dim);
  const std::int64_t count = s.rows - begin < kTileRows ? s.rows - begin : kTileRows;
  load_rows(s.q + begin * a.strides.q + head * hd, a.strides.q, count, hd, tiles.q);
  load_rows(s.dout + begin * a.strides.out + head * hd, a.strides.out, count, hd, tiles.dout);
  RowFacts facts;
  for (int i = 0; i < kRowsEach; ++i) {
    const std::int64_t row = begin + ty() * kRowsEach + i;
    const bool inside = row < s.rows;
    float dot = 0;
    for (int d = tx(); inside && d < hd; d += kSide)
      dot = fmaf(s.out[row * a.strides.out + head * hd + d], s.dout[row * a.strides.out + head * hd + d], dot);
    facts.delta[i] = sum_of_16(dot);
    facts.lse[i] = inside ? s.lse[row * a.shape.heads + head] : 0.0f;
    facts.visible[i] = inside ? s.prefix.count + row + 1 : 0;
  }
  return facts;
}

/// p and ds of the tile of rows against keys [first_key, first_key + count) of the sequence; 0 where a row does not see.
__device__ void slopes(const CudaAttentionGrad& a, const Tiles& tiles, const RowFacts& facts, std::int64_t first_key,
                       std::int64_t count) {
  const int hd = static_cast<int>(a.shape.head_dim);
  float score[kRowsEach][kKeysEach];
  float slope[kRowsEach][kKeysEach];
  dot_tile<kRowsEach>(tiles.q, tiles.k, hd, a.shape.scale, score);
  dot_tile<kRowsEach>(tiles.dout, tiles.v, hd, 1.0f, slope);
  for (int i = 0; i < kRowsEach; ++i)
    for (int j = 0; j < kKeysEach; ++j) {
      const int key = tx() + kSide * j;
      const bool seen = key < count && first_key + key < facts.visible[i];
      const float p = seen ? exp_of(score[i][j] - facts.lse[i]) : 0.0f;
      const int at = (ty() * kRowsEach + i) * kTileKeys + key;
      tiles.p[at] = p;
      tiles.ds[at] = seen ? p * a.shape.scale * (slope[i][j] - facts.delta[i]) : 0.0f;
    }
}

template <int kChunks>
__global__ void __launch_bounds__(kTileThreads) dq_kernel(CudaAttentionGrad a) {
  TROUPE_DYNAMIC_SHARED(float, memory);
  const AttentionGradSegment& s = a.segments[blockIdx.z];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kTileRows;
  if (begin >= s.rows) return;  // the whole block
  const int hd = static_cast<int>(a.shape.head_dim);
  const std::int64_t head = blockIdx.y;
  const std::int64_t kv_head = head / (a.shape.heads / a.shape.kv_heads);
  const Tiles tiles = tiles_in(memory, hd);
  const RowFacts facts = load_tile_rows(a, s, head, begin, tiles);
  const std::int64_t last = begin + kTileRows < s.rows ? begin + kTileRows : s.rows;
  float acc[kRowsEach][kChunks] = {};
  for (int part = 0; part < 2; ++part) {
    const KeyGrad& keys = part == 0 ? s.prefix : s.own;
    const std::int64_t before = part == 0 ? 0 : s.prefix.count;
    const std::int64_t seen = part == 0 ? s.prefix.count : last;
    for (std::int64_t first = 0; first < seen; first += kTileKeys) {
      const std::int64_t count = seen - first < kTileKeys ? seen - first : kTileKeys;
      load_rows(keys.k + first * a.strides.kv + kv_head * hd, a.strides.kv, count, hd, tiles.k);
      load_rows(keys.v + first * a.strides.kv + kv_head * hd, a.strides.kv, count, hd, tiles.v);
      __syncthreads();
      slopes(a, tiles, facts, before + first, count);
      __syncthreads();
      for (std::int64_t t = 0; t < count; ++t)
#pragma unroll
        for (int i = 0; i < kRowsEach; ++i) {
          const float ds = tiles.ds[(ty() * kRowsEach + i) * kTileKeys + t];
#pragma unroll
          for (int j = 0; j < kChunks; ++j)
            if (tx() + kSide * j < hd) acc[i][j] = fmaf(ds, tiles.k[t * (hd + 1) + tx() + kSide * j], acc[i][j]);
        }
      __syncthreads();
    }
  }
  for (int i = 0; i < kRowsEach; ++i) {
    if (facts.visible[i] == 0) continue;
    float* dq = s.dq + (begin + ty() * kRowsEach + i) * a.strides.dq + head * hd;
#pragma unroll
    for (int j = 0; j < kChunks; ++j)
      if (tx() + kSide * j < hd) dq[tx() + kSide * j] = acc[i][j];
  }
}

__device__ inline const float* first_key(const AttentionGradSegment& s) {
  return s.prefix.count > 0 ? s.prefix.k : s.own.k;
}
/// The part of a segment whose rows begin at `k`, or null.
__device__ inline const KeyGrad* part_at(const AttentionGradSegment& s, const float* k) {
  if (s.rows == 0) return nullptr;
  if (s.prefix.count > 0 && s.prefix.k == k) return &s.prefix;
  return s.own.k == k ? &s.own : nullptr;
}

/// Neighbouring segments that share their first rows; those without rows belong to any.
struct Sharing {
  std::int64_t begin, end;
};
__device__ Sharing sharing_of(const CudaAttentionGrad& a, std::int64_t index) {
  const float* name = first_key(a.segments[index]);
  Sharing g{index, index + 1};
  for (std::int64_t i = index; i-- > 0 && (a.segments[i].rows == 0 || first_key(a.segments[i]) == name);) g.begin = i;
  while (g.end < a.count && (a.segments[g.end].rows == 0 || first_key(a.segments[g.end]) == name)) ++g.end;
  return g;
}

/// The rows that block z adds to: a segment's own (even) or its prefix (odd). Null when an earlier block has the same.
__device__ const KeyGrad* rows_of_block(const CudaAttentionGrad& a, const Sharing& group) {
  const AttentionGradSegment& s = a.segments[blockIdx.z / 2];
  const bool prefix = blockIdx.z % 2 == 1;
  if (s.rows == 0 || (prefix && s.prefix.count == 0)) return nullptr;
  const KeyGrad& wanted = prefix ? s.prefix : s.own;
  for (std::int64_t i = group.begin; i < blockIdx.z / 2; ++i)
    if (part_at(a.segments[i], wanted.k) != nullptr) return nullptr;
  return &wanted;
}

/// acc[i][j] += sum over rows r of weights[r][key i] source[r][channel j], rows ascending; keys ty * kKeysEach + i.
template <int kChunks>
__device__ void add_rows(const float* weights, const float* source, std::int64_t rows, int hd,
                         float (&acc)[kKeysEach][kChunks]) {
  for (std::int64_t r = 0; r < rows; ++r)
#pragma unroll
    for (int i = 0; i < kKeysEach; ++i) {
      const float weight = weights[r * kTileKeys + ty() * kKeysEach + i];
#pragma unroll
      for (int j = 0; j < kChunks; ++j)
        if (tx() + kSide * j < hd) acc[i][j] = fmaf(weight, source[r * (hd + 1) + tx() + kSide * j], acc[i][j]);
    }
}

/// Reads (or writes back) the block's tile of a gradient.
template <int kChunks>
__device__ void move_tile(float* rows, std::int64_t stride, std::int64_t count, int hd, bool write,
                          float (&acc)[kKeysEach][kChunks]) {
  for (int i = 0; i < kKeysEach; ++i) {
    float* row = rows + (ty() * kKeysEach + i) * stride;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      if (tx() + kSide * j >= hd || ty() * kKeysEach + i >= count)
        acc[i][j] = 0;
      else if (write)
        row[tx() + kSide * j] = acc[i][j];
      else
        acc[i][j] = row[tx() + kSide * j];
    }
  }
}

template <int kChunks>
__global__ void __launch_bounds__(kTileThreads, 1) dkv_kernel(CudaAttentionGrad a) {
  TROUPE_DYNAMIC_SHARED(float, memory);
  const Sharing group = sharing_of(a, blockIdx.z / 2);
  const KeyGrad* target = rows_of_block(a, group);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTileKeys;
  if (target == nullptr || first >= target->count) return;  // the whole block
  const int hd = static_cast<int>(a.shape.head_dim);
  const std::int64_t kv_head = blockIdx.y;
  const std::int64_t heads = a.shape.heads / a.shape.kv_heads;
  const std::int64_t count = target->count - first < kTileKeys ? target->count - first : kTileKeys;
  const Tiles tiles = tiles_in(memory, hd);
  load_rows(target->k + first * a.strides.kv + kv_head * hd, a.strides.kv, count, hd, tiles.k);
  load_rows(target->v + first * a.strides.kv + kv_head * hd, a.strides.kv, count, hd, tiles.v);
  float* dk_rows = target->dk + first * a.strides.dkv + kv_head * hd;
  float* dv_rows = target->dv + first * a.strides.dkv + kv_head * hd;
  float dk[kKeysEach][kChunks];
  float dv[kKeysEach][kChunks];
  move_tile(dk_rows, a.strides.dkv, count, hd, false, dk);
  move_tile(dv_rows, a.strides.dkv, count, hd, false, dv);
  for (std::int64_t i = group.begin; i < group.end; ++i) {
    const AttentionGradSegment& s = a.segments[i];
    const KeyGrad* part = part_at(s, target->k);
    if (part == nullptr || first >= part->count) continue;
    const bool own = part == &s.own;
    const std::int64_t seen = part->count - first < count ? part->count - first : count;
    for (std::int64_t head = kv_head * heads; head < (kv_head + 1) * heads; ++head)
      for (std::int64_t row = own ? first : 0; row < s.rows; row += kTileRows) {  // rows before see none of these keys
        const RowFacts facts = load_tile_rows(a, s, head, row, tiles);
        __syncthreads();
        slopes(a, tiles, facts, (own ? s.prefix.count : 0) + first, seen);
        __syncthreads();
        const std::int64_t rows = s.rows - row < kTileRows ? s.rows - row : kTileRows;
        add_rows(tiles.ds, tiles.q, rows, hd, dk);
        add_rows(tiles.p, tiles.dout, rows, hd, dv);
        __syncthreads();
      }
  }
  move_tile(dk_rows, a.strides.dkv, count, hd, true, dk);
  move_tile(dv_rows, a.strides.dkv, count, hd, true, dv);
}

template <int kChunks>
const char* backward(const CudaAttentionGrad& a, void* stream) {
  const auto bytes = static_cast<std::size_t>(tile_floats(a.shape.head_dim)) * sizeof(float);
  const Blocks row_blocks{pieces(a.max_rows, kTileRows), a.shape.heads, a.count};
  if (const char* refused = launch(dq_kernel<kChunks>, row_blocks, {kTileThreads, 1, 1}, bytes, stream, a)) return refused;
  const std::int64_t most = a.max_rows > a.max_prefix ? a.max_rows : a.max_prefix;
  const Blocks key_blocks{pieces(most, kTileKeys), a.shape.kv_heads, 2 * a.count};
  return launch(dkv_kernel<kChunks>, key_blocks, {kTileThreads, 1, 1}, bytes, stream, a);
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_attention_backward(const troupe::kernels::CudaAttentionGrad* args, void* stream) {
  using namespace troupe::kernels;
  if (args->shape.precision != Precision::kFloat32) return "attention_backward: float32 only";
  CudaAttentionGrad a = *args;
  a.shape = cuda::with_scale(a.shape);
  const std::int64_t q_row = a.shape.heads * a.shape.head_dim;
  const std::int64_t kv_row = a.shape.kv_heads * a.shape.head_dim;
  if (a.strides.q == 0) a.strides.q = q_row;
  if (a.strides.out == 0) a.strides.out = q_row;
  if (a.strides.dq == 0) a.strides.dq = q_row;
  if (a.strides.kv == 0) a.strides.kv = kv_row;
  if (a.strides.dkv == 0) a.strides.dkv = kv_row;
  const int chunks = cuda::chunks_for(a.shape.head_dim);
  if (chunks == 4) return cuda::backward<4>(a, stream);
  return chunks == 8 ? cuda::backward<8>(a, stream) : cuda::backward<16>(a, stream);
}
