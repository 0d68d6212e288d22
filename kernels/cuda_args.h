/// @file
/// Arguments of those entries of libtroupe_cuda.so that are not the CPU kernel's own argument struct. Every pointer is
/// to device memory, also those inside lists; what the host must know to launch stands beside them.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/delta_net.h"
#include "kernels/gemm.h"
#include "kernels/listed_attention.h"
#include "kernels/sampling.h"

namespace troupe::kernels {

/// `sample_rows`.
struct CudaSampleRows {
  SampleRow* rows = nullptr;  ///< [count]
  std::int64_t count = 0;
  std::int64_t vocab = 0;
  void* workspace = nullptr;  ///< cuda_sample_bytes(count, vocab)
};
[[nodiscard]] constexpr std::int64_t cuda_sample_bytes(std::int64_t count, std::int64_t vocab) {
  return count * ((vocab + 15) / 16) * (16 * 4 + 8);  // a weight per token, a running sum per 16 of them
}

/// `attention_forward`.
struct CudaAttention {
  AttentionShape shape;
  const AttentionSegment* segments = nullptr;  ///< [count]
  std::int64_t count = 0;
  std::int64_t max_rows = 0;  ///< Of any segment.
  /// For decoding: spreads the keys of a segment over the device where max_rows times the heads of a group are at most
  /// 16. cuda_attention_bytes; null: no spreading. The bits are the same.
  void* workspace = nullptr;
  std::int64_t max_keys = 0;  ///< Of any segment; read with a workspace only.
};
/// Per query head: a score per key and a factor; per kv head a pointer per key.
[[nodiscard]] constexpr std::int64_t cuda_attention_bytes(const AttentionShape& shape, std::int64_t count,
                                                          std::int64_t max_rows, std::int64_t max_keys) {
  const std::int64_t keys = (max_keys + 63) / 64 * 64;
  return count * (shape.kv_heads * keys * 8 + max_rows * shape.heads * (keys + 1) * 4);
}

/// `attention_backward`.
struct CudaAttentionGrad {
  AttentionShape shape;
  AttentionGradStrides strides;
  const AttentionGradSegment* segments = nullptr;  ///< [count]
  std::int64_t count = 0;
  std::int64_t max_rows = 0;    ///< Of any segment.
  std::int64_t max_prefix = 0;  ///< Keys of any prefix.
};

/// `store_in_pages`.
struct CudaPageStores {
  AttentionShape shape;
  const PageStore* stores = nullptr;  ///< [count]
  std::int64_t count = 0;
  std::int64_t max_rows = 0;  ///< Of any store.
};

/// `listed_attention`.
struct CudaListedAttention {
  ListedShape shape;
  const ListedSegment* segments = nullptr;  ///< [count]
  std::int64_t count = 0;
  std::int64_t max_rows = 0;  ///< Of any segment.
  std::int64_t max_seen = 0;  ///< Most rows one query sees, tokens and entries; at most 50000.
};

/// `delta_rule_backward`: one sequence.
struct CudaDeltaGrad {
  DeltaRuleGrad grad;
  void* workspace = nullptr;  ///< cuda_delta_bytes(grad)
};
[[nodiscard]] constexpr std::int64_t cuda_delta_bytes(const DeltaRuleGrad& g) {
  return g.value_heads * (((g.rows + 63) / 64 + 64) * g.key_dim * g.value_dim + g.rows * 2 * g.key_dim) * 4;
}

/// `matmul` and `grouped_matmul`: y[M, N] = x[M, K] W^T, W [N, K] as it is (nothing is packed).
struct CudaMatmul {
  const float* x = nullptr;  ///< [m, k], ldx floats from row to row (0: k).
  const float* w = nullptr;  ///< [n, k], ldw floats from row to row (0: k); transposed: [k, n] (0: n).
  float* y = nullptr;        ///< [m, n], ldy floats from row to row (0: n).
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t ldx = 0, ldw = 0, ldy = 0;
  bool transposed = false;  ///< y = x W: the gradient of the input.
  int chains = 4;           ///< 1, 2 or 4, as in gemm.h.
  Precision precision = Precision::kFloat32;
  const std::int32_t* group_ends = nullptr;  ///< [groups], ascending: group g has the rows [ends[g-1], ends[g]) of x and
                                             ///< y and the weights w + g n k. Null: one group.
  std::int64_t groups = 1;
  std::int64_t max_group_rows = 0;  ///< Of any group; 0: m.
};

/// `add`: y[i] += x[i].
struct CudaAdd {
  const float* x = nullptr;  ///< [n]
  float* y = nullptr;        ///< [n]
  std::int64_t n = 0;
};

/// `copy`: rows of bytes, from and to host or device memory as the pointers say. A copy from or to ordinary host memory
/// is done, or has read what it needs, when the call returns.
struct CudaCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t rows = 0, row_bytes = 0;
  std::size_t to_stride = 0, from_stride = 0;  ///< Bytes from row to row.
};

/// `round_bfloat16`: to nearest, ties to even; what lies below the smallest normal float32 becomes 0.
struct CudaRound {
  const float* x = nullptr;    ///< [n]
  std::uint16_t* y = nullptr;  ///< [n]
  std::int64_t n = 0;
};

/// `matmul_tensor` (our own, on tensor cores) and `matmul_library` (cuBLASLt): y[M, N] = x[M, K] W^T of bfloat16
/// numbers, summed in float32.
struct CudaTensorMatmul {
  const std::uint16_t* x = nullptr;  ///< [m, k]
  const std::uint16_t* w = nullptr;  ///< [n, k]
  float* y = nullptr;                ///< [m, n]
  std::int64_t m = 0, n = 0, k = 0;  ///< k: a multiple of 8; x and w on 16 bytes.
  void* workspace = nullptr;         ///< Of matmul_library only; may be null.
  std::int64_t workspace_bytes = 0;
};

/// How quantised numbers lie (formats/quantised.h).
enum class CudaQuantised : std::uint8_t {
  kFp8Blocks,   ///< E4M3 [rows, cols], a float32 scale per 128 x 128 block.
  kFp8BlocksE8, ///< The same with E8M0 scales.
  kMxFp8,       ///< E4M3 [rows, cols], an E8M0 scale per 32 columns.
  kMxFp4,       ///< E2M1 [rows, cols / 2], low four bits first, an E8M0 scale per 32 columns.
};

/// `quantise` writes codes and scales from x, `dequantise` writes x.
struct CudaQuantise {
  float* x = nullptr;             ///< [rows, cols]; dequantise with `transposed`: [cols, rows].
  std::uint8_t* codes = nullptr;  ///< As `layout` says.
  void* scales = nullptr;         ///< float or byte each.
  std::int64_t rows = 0, cols = 0;
  CudaQuantised layout = CudaQuantised::kFp8Blocks;
  bool transposed = false;  ///< dequantise only, kMxFp4 (GPT-OSS's experts).
};

}  // namespace troupe::kernels
