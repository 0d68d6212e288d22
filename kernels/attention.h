/// @file
/// Causal softmax attention with grouped query heads, over keys that lie in rows (training) or in pages (generation).
///
/// One call takes all segments of a batch, so that a layer costs one parallel region however many sequences there are.
#pragma once

#include <cstdint>

#include "kernels/gemm.h"

namespace troupe::kernels {

/// How the keys and values of a span lie in memory (K = kv heads, hd = head_dim).
enum class KvLayout {
  kRows,   ///< Token t, head j at k + t * stride + j * hd, v likewise: the rows of a training batch.
  kPages,  ///< A page of `stride` tokens in the call's precision, see KvPage.
};

/// Consecutive keys of a segment.
struct KeySpan {
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t count = 0;   ///< Tokens in the span; the rest of a page may hold anything.
  std::int64_t stride = 0;  ///< kRows: floats from token to token. kPages: tokens a page holds, a multiple of 16.
  KvLayout layout = KvLayout::kRows;
};

/// What all segments share.
struct AttentionShape {
  std::int64_t heads = 0;     ///< H query heads.
  std::int64_t kv_heads = 0;  ///< K, divides H; query head h reads kv head h / (H/K).
  std::int64_t head_dim = 0;  ///< A multiple of 16, at most 256.
  float scale = 0;            ///< Multiplies the scores; 0: 1 / sqrt(head_dim).
  /// What the operands of the products are rounded to: queries, keys, values, probabilities and their gradients.
  Precision precision = Precision::kFloat32;
};

/// The queries of one sequence and the keys they see: query i of n sees the first (keys - n + i + 1) keys of the
/// concatenated spans, so the last n keys are the queries' own tokens.
struct AttentionSegment {
  const float* q = nullptr;  ///< [rows, H, hd], `q_stride` floats from row to row.
  float* out = nullptr;      ///< [rows, H, hd], `out_stride` floats from row to row.
  float* lse = nullptr;      ///< [rows, H], log of the sum of exp(score), kept for the backward pass; null to skip.
  std::int64_t rows = 0;
  std::int64_t q_stride = 0;    ///< 0: H * hd.
  std::int64_t out_stride = 0;  ///< 0: H * hd.
  const KeySpan* spans = nullptr;
  std::int64_t span_count = 0;
};

/// out = softmax(scale q k^T) v for every segment.
///
/// Determinism: a query row's bits depend only on q and on the keys and values it sees: not on the rows, segments and
///   threads around it, nor on where its keys are cut into spans or how they are laid out. So decoding a token gives
///   the bits of prefilling it. Scores are one chain over head_dim; the maximum is exact; the sum of exponentials has
///   64 lanes by key index; the output is one chain over the keys. kBfloat16: both are chains of blocks of 32, as in
///   matmul, over channels and over keys counted from the segment's first; exp(score - maximum) is rounded, its sum not.
/// Cost: 4 hd operations per (query head, visible key). Scratch: 6 rows of scores per thread and, for kRows, a packed
///   copy of the keys (a prefix that neighbouring segments share is packed once). kBfloat16: 32 rows of scores, and
///   packed copies of a head's keys and values per thread.
void attention_forward(const AttentionShape& shape, const AttentionSegment* segments, std::int64_t count);

/// A page of the KV cache: `capacity` tokens of one layer, in the shape's precision.
/// kFloat32: keys [K][capacity/16][hd][16], so that 16 neighbouring keys are one vector; values [K][capacity][hd].
/// kBfloat16: pairs of numbers in 32 bits (the first in the low half), of neighbouring channels of a key and of
/// neighbouring tokens' values: keys [K][capacity/16][hd/2][16], values [K][capacity/2][hd].
struct KvPage {
  float* k = nullptr;         ///< kv_page_floats(...) floats
  float* v = nullptr;         ///< kv_page_floats(...) floats
  std::int64_t capacity = 0;  ///< Tokens, a multiple of 16.
};

/// Floats (of 32 bits) that the keys (or the values) of one page take.
[[nodiscard]] inline std::int64_t kv_page_floats(const AttentionShape& shape, std::int64_t capacity) {
  return shape.kv_heads * shape.head_dim * capacity / (shape.precision == Precision::kBfloat16 ? 2 : 1);
}

/// Copies `rows` tokens' keys and values (token t, head j at k + t * stride + j * hd) into slots first, first + 1, ...
/// of a page, rounded to the shape's precision. The page is then read, in that precision, with a KeySpan{page.k, page.v, tokens, page.capacity, KvLayout::kPages}.
void store_in_page(const AttentionShape& shape, const float* k, const float* v, std::int64_t stride, std::int64_t rows,
                   const KvPage& page, std::int64_t first);

/// The arguments of one store_in_page.
struct PageStore {
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  KvPage page;
  std::int64_t first = 0;
};

/// All of a layer's stores, on several threads when there are many. No two may write the same slot.
void store_in_pages(const AttentionShape& shape, const PageStore* stores, std::int64_t count);

/// Reads slots first ... first + rows - 1 of a page back into rows: what store_in_page has put there.
void load_from_page(const AttentionShape& shape, const KvPage& page, std::int64_t first, std::int64_t rows, float* k,
                    float* v, std::int64_t stride);

/// A contiguous range of key and value rows and where their gradients are added. Strides as in KvLayout::kRows.
struct KeyGrad {
  const float* k = nullptr;
  const float* v = nullptr;
  float* dk = nullptr;
  float* dv = nullptr;
  std::int64_t count = 0;
};

/// Backward pass of one segment whose keys are the rows of a shared prefix (may be empty), then its own rows.
struct AttentionGradSegment {
  const float* q = nullptr;     ///< [rows, H, hd]
  const float* out = nullptr;   ///< [rows, H, hd], of the forward pass.
  const float* dout = nullptr;  ///< [rows, H, hd]
  const float* lse = nullptr;   ///< [rows, H], of the forward pass.
  float* dq = nullptr;          ///< [rows, H, hd], written.
  std::int64_t rows = 0;
  KeyGrad prefix;  ///< dk, dv are added to, in the order of the segments.
  KeyGrad own;     ///< count = rows; dk, dv are added to: the caller zeroes them before the first segment.
};

/// Strides that all segments of a backward pass share, in floats from row to row.
struct AttentionGradStrides {
  std::int64_t q = 0;    ///< 0: H * hd. Of q.
  std::int64_t out = 0;  ///< 0: H * hd. Of out and dout.
  std::int64_t dq = 0;   ///< 0: H * hd.
  std::int64_t kv = 0;   ///< 0: K * hd. Of k and v.
  std::int64_t dkv = 0;  ///< 0: K * hd. Of dk and dv.
};

/// dq, dk, dv of attention_forward.
///
/// Segments that share rows must be neighbours in the list and name the shared rows by the same first key row: the
/// prompt's own segment (prefix empty, own.k = p) and the segments behind it (prefix.k = p).
/// Determinism: every sum is one chain in the order of segments, heads of the group, query rows (dk, dv) or keys (dq),
///   whatever the threads. kBfloat16: of blocks of 32 keys (dq) or rows (dk, dv), these in blocks of 64 rows, and a
///   segment's sum is added to what is there. Cost: 10 hd operations per (query head, visible key).
void attention_backward(const AttentionShape& shape, const AttentionGradStrides& strides,
                        const AttentionGradSegment* segments, std::int64_t count);

}  // namespace troupe::kernels
