/// @file
/// The single-threaded inner functions of the CPU kernels, once per instruction set. The files of this folder split
/// work into ranges and threads; what runs inside a range comes from the active table. Internal to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/delta_net.h"
#include "kernels/gemm.h"
#include "kernels/isa.h"
#include "kernels/listed_attention.h"
#include "kernels/logprob.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/sampling.h"
#include "kernels/swiglu.h"

namespace troupe::kernels {

inline constexpr std::int64_t kLanes = 16;  ///< Width of a vector, of a panel of weights and of a panel of keys.

inline constexpr int kChains = 4;               ///< Fixed pieces of K that are summed by a tree.
inline constexpr std::int64_t kPairBlock = 32;  ///< bfloat16 numbers along K that are summed before they are added.

/// k, up to a whole number of blocks.
inline std::int64_t padded(std::int64_t k) { return (k + kPairBlock - 1) / kPairBlock * kPairBlock; }
/// Floats of a panel of 16 rows of k numbers: [k][16], or pairs [k/32][16][16].
inline std::int64_t panel_floats(std::int64_t k, Precision precision) {
  return precision == Precision::kFloat32 ? k * kLanes : padded(k) / 2 * kLanes;
}

struct ProductTable;

/// Columns of y from a range of weight panels, for some rows of x. Strides are resolved.
struct MatmulPart {
  const float* x;
  std::int64_t m, ldx;
  const float* panels;
  std::int64_t n, k;
  std::int64_t bounds[kChains + 1];  ///< Where the chains of K begin and end.
  std::int64_t panel_begin, panel_end;
  float* y;
  std::int64_t ldy;
  float* scratch;           ///< (`block_rows` + 16) * padded(k) floats, for packed rows of x; or for pieces, see below.
  std::int64_t block_rows;  ///< Rows packed at a time.
};

/// Rows [begin, end) of dW from one block of rows of dy and x.
struct GradientPart {
  const float* dy;
  std::int64_t ldy;
  std::int64_t rows;
  const float* panels;  ///< Of x: panels of 16 columns, packed along the rows.
  std::int64_t k;
  std::int64_t begin, end;
  float* dw;  ///< [n, k]
  bool add;
  float* scratch;  ///< kGradientColumns * padded(rows) floats
};

/// Rows of x times panels: one chain of blocks. Columns of y that are no multiple of 16 are written as far as n.
struct RowsPart {
  const float* x;
  std::int64_t m, ldx, k;
  const float* panels;
  std::int64_t panel_floats;  ///< From panel to panel.
  std::int64_t n;
  float* y;
  std::int64_t ldy;
  float* scratch;  ///< (m + 16) * padded(k) floats
};

/// Columns of dy that are packed together: whole tiles of every kind.
inline constexpr std::int64_t kGradientColumns = 96;

/// Keys and values of a span for all heads: head j's panels at k + j * k_head, its value rows at v + j * v_head.
struct SpanView {
  const float* k;
  const float* v;
  std::int64_t k_head, v_head, v_row;
  std::int64_t count;
};

/// Queries [row_begin, row_end) of one segment under one kv head.
struct AttentionTask {
  AttentionShape shape;  ///< `scale` is resolved.
  const AttentionSegment* segment;
  std::int64_t q_stride, out_stride;
  const SpanView* spans;
  std::int64_t span_count;
  std::int64_t keys;  ///< Sum of the spans' counts.
  std::int64_t kv_head, row_begin, row_end;
  float* scratch;  ///< attention_scratch_floats(shape, keys)
};

/// The backward pass of a group of segments under one kv head. Strides are resolved.
struct AttentionGradTask {
  AttentionShape shape;
  AttentionGradStrides strides;
  const AttentionGradSegment* segments;
  std::int64_t count;
  std::int64_t kv_head;
  float* scratch;  ///< attention_grad_scratch_floats(shape, largest number of keys of a segment)
  const ProductTable* products;  ///< Of the shape's precision.
};

/// Queries [row_begin, row_end) of one segment under one kv head, with operands of bfloat16. Strides are resolved.
struct PairAttentionTask {
  AttentionShape shape;
  const AttentionSegment* segment;
  std::int64_t q_stride, out_stride;
  std::int64_t keys;  ///< Sum of the spans' counts.
  std::int64_t kv_head, row_begin, row_end;
  const ProductTable* products;
  float* scratch;  ///< pair_attention_scratch_floats(shape, keys)
};

/// Rows that lie `stride` floats apart.
struct RowRun {
  const float* rows;
  std::int64_t stride;
  std::int64_t count;
};

inline constexpr std::int64_t kListedKeys = 64;  ///< Listed rows that all heads pass over together.

/// One query row and the rows it sees.
struct ListedTask {
  const ListedShape* shape;
  const float* q;
  float* out;
  const RowRun* runs;              ///< No run crosses a multiple of kListedKeys.
  const std::int64_t* first_run;   ///< Of every block of kListedKeys rows.
  std::int64_t keys;
  float* inverse;  ///< [heads of a kv head]
  float* scratch;  ///< listed_scratch_floats(shape, keys)
};

/// A row that queries see, and its gradient, which is added to.
struct ListedRow {
  const float* row;
  float* gradient;
};

inline constexpr std::int64_t kListedGradPairs = 64;  ///< (query, head) pairs whose probabilities are kept at a time.

/// The backward pass of some query rows under one kv head. Row i sees keys [first_end + i - window, first_end + i).
struct ListedGradBlock {
  const ListedShape* shape;
  const float* q;     ///< Of the first row, all heads.
  const float* dout;
  float* dq;
  std::int64_t rows;
  const ListedRow* keys;
  std::int64_t count, first_end, window;  ///< window 0: all from the first key on.
  std::int64_t kv_head;
  float* dsinks;   ///< [heads], added to.
  float* scratch;  ///< listed_grad_scratch_floats(shape, rows, count)
};

/// AdamW's factors, computed once per call in float64.
struct AdamWFactors {
  float decay, beta1, one_minus_beta1, beta2, one_minus_beta2, inv_sqrt_correction2, eps, step_size, grad_scale;
};

inline constexpr std::int64_t kAttentionTileRows = 6;   ///< (query, head) pairs that share a pass over the keys.
inline constexpr std::int64_t kAttentionGradRows = 24;  ///< Query rows whose probabilities are kept at a time.

inline std::int64_t padded_keys(std::int64_t keys) { return (keys + kLanes - 1) / kLanes * kLanes + 4 * kLanes; }
inline std::int64_t attention_scratch_floats(const AttentionShape& s, std::int64_t keys) {
  return kAttentionTileRows * (padded_keys(keys) + 2 * s.head_dim);
}
inline std::int64_t attention_grad_scratch_floats(const AttentionShape& s, std::int64_t keys) {
  return 2 * kAttentionGradRows * padded_keys(keys) + 2 * (keys + 2 * kLanes) * s.head_dim +
         2 * kAttentionTileRows * s.head_dim;
}

inline constexpr std::int64_t kPairAttentionRows = 32;  ///< (query, head) pairs of a pass over keys of bfloat16.
inline constexpr std::int64_t kPairDecodeRows = 12;     ///< So few read pages as they are, without packing.
inline constexpr std::int64_t kPairGradRows = 64;       ///< Query rows of a block of the backward pass.
inline std::int64_t pair_attention_scratch_floats(const AttentionShape& s, std::int64_t keys) {
  const std::int64_t k = padded(keys) + kPairBlock, d = padded(s.head_dim);
  return k * d + (kPairAttentionRows + 4) * (2 * d + padded_keys(keys)) + (kPairAttentionRows + kLanes) * (k + d) + 8 * kLanes;
}
inline std::int64_t pair_attention_grad_scratch_floats(const AttentionShape& s, std::int64_t keys) {
  const std::int64_t k = padded(keys) + kPairBlock, d = padded(s.head_dim);
  return 4 * k * d + kPairGradRows * (d + 2 * padded_keys(keys)) + (kPairGradRows + kLanes) * (k + d) +
         kGradientColumns * kPairGradRows + 16 * kLanes;
}

inline constexpr std::int64_t kConvTaps = 32;       ///< The most.
inline constexpr std::int64_t kConvChannels = 512;  ///< Channels that all rows pass together.
inline constexpr std::int64_t kConvRows = 64;       ///< Rows of a chain of a weight's gradient.

/// Channels [begin, end) of a convolution or of its gradient. Scratch: 1 or 3 times taps * kConvChannels floats.
template <class Args>
struct ConvTask {
  const Args* args;
  std::int64_t begin, end;
  float* scratch;
};

inline constexpr std::int64_t kDeltaRows = 64;  ///< Rows whose keys and queries are normalised at a time.

/// Value heads of a recurrence: one, or in chunks some that share a key head.
struct DeltaTask {
  const DeltaRule* rule;
  std::int64_t head, heads;
  float* scratch;  ///< delta_scratch_floats(key_dim); in chunks: delta_chunk_floats(key_dim, value_dim, heads, heads)
};
inline std::int64_t delta_scratch_floats(std::int64_t key_dim) { return (2 * kDeltaRows + 64) * key_dim + 2 * kDeltaRows; }

/// The value heads of one key head.
struct DeltaGradTask {
  const DeltaRuleGrad* rule;
  std::int64_t key_head;
  float* scratch;  ///< delta_chunk_floats(key_dim, value_dim, heads (chunks + 1), heads chunks)
};
/// For `states` states, U of `chunks` chunks and the matrices of a chunk, forward and backward; channels may be filled
/// up by two vectors.
inline std::int64_t delta_chunk_floats(std::int64_t key_dim, std::int64_t value_dim, std::int64_t states,
                                       std::int64_t chunks) {
  const std::int64_t k = key_dim + 2 * kLanes, v = value_dim + 2 * kLanes, c = kDeltaChunk + 2 * kLanes;
  return 9 * c * k + 6 * c * v + 8 * c * c + k * v + 12 * c + states * k * v + chunks * c * v;
}

inline std::int64_t listed_scratch_floats(const ListedShape& s, std::int64_t keys) {
  return s.heads / s.kv_heads * (padded_keys(keys + 1) + s.value_dim + kLanes);
}

inline std::int64_t listed_grad_scratch_floats(const ListedShape& s, std::int64_t rows, std::int64_t keys) {
  const std::int64_t k = s.key_dim + kLanes, v = s.value_dim + kLanes, pairs = rows * s.heads / s.kv_heads;
  return (keys + kLanes) * (2 * k + v) + pairs * (k + v) + 2 * kListedGradPairs * padded_keys(keys) +
         (kListedGradPairs + 2 * kAttentionTileRows) * (k + v) + 16 * kLanes;
}

/// The matrix products of one precision.
/// block_numbers where nothing is known of the caches: 384 KiB of float32, below half of most second-level caches.
inline constexpr std::int64_t kBlockNumbers = 96 << 10;

/// Products of float32 with more rows than a block and a longer K than this are computed in pieces: so many rows, panels
/// and numbers along K at a time.
inline constexpr std::int64_t kLongK = 1536;
inline constexpr std::int64_t kPieceRows = 128;
inline constexpr std::int64_t kPiecePanels = 66;
inline constexpr std::int64_t kPieceK = 1024;

struct ProductTable {
  std::int64_t tile_rows;      ///< Rows of a tall register tile; blocks of rows are multiples of it.
  std::int64_t block_numbers;  ///< Of x, packed at a time: they stay in the second-level cache.
  /// Up to 16 rows of k floats as a panel; the rows that lack are 0.
  void (*pack_panel)(const float* const* rows, std::int64_t count, std::int64_t k, float* panel);
  /// Columns [column, column + cols) of up to 32 rows as that part of a panel; the columns that lack are 0.
  void (*pack_columns)(const float* const* rows, std::int64_t count, std::int64_t column, std::int64_t cols, float* to);
  void (*matmul)(const MatmulPart&);
  void (*gradient)(const GradientPart&);
  void (*rows)(const RowsPart&) = nullptr;  ///< bfloat16 only.
};

struct KernelTable {
  Isa isa;
  ProductTable products[2];  ///< By Precision.
  void (*attention)(const AttentionTask&);
  void (*attention_grad)(const AttentionGradTask&);
  void (*pair_attention)(const PairAttentionTask&);
  void (*pair_attention_grad)(const AttentionGradTask&);
  void (*listed)(const ListedTask&);
  void (*listed_grad)(const ListedGradBlock&);
  void (*conv)(const ConvTask<CausalConv>&);
  void (*conv_grad)(const ConvTask<CausalConvGrad>&);
  void (*delta)(const DeltaTask&);
  void (*delta_chunks)(const DeltaTask&);
  void (*delta_grad)(const DeltaGradTask&);
  void (*rmsnorm_forward)(const RmsNormForward&, std::int64_t row_begin, std::int64_t row_end);
  void (*rmsnorm_dx)(const RmsNormBackward&, std::int64_t row_begin, std::int64_t row_end);
  void (*rmsnorm_dweight)(const RmsNormBackward&, std::int64_t col_begin, std::int64_t col_end);
  void (*rope)(const Rope&, std::int64_t row_begin, std::int64_t row_end);
  void (*swiglu_forward)(const SwigluForward&, std::int64_t row_begin, std::int64_t row_end);
  void (*swiglu_backward)(const SwigluBackward&, std::int64_t row_begin, std::int64_t row_end);
  void (*logprob_forward)(const LogprobForward&, std::int64_t row_begin, std::int64_t row_end);
  void (*logprob_backward)(const LogprobBackward&, std::int64_t row_begin, std::int64_t row_end);
  void (*sample)(SampleRow* rows, std::int64_t count, std::int64_t vocab, float* scratch);
  double (*softmax_weights)(const float* logits, std::int64_t vocab, float temperature, float* weights, float* sums);
  void (*adamw)(const AdamW&, const AdamWFactors&, std::int64_t begin, std::int64_t end);
  void (*add)(const float* x, float* y, std::int64_t n);
  void (*scale)(float* x, std::int64_t n, float factor);
  void (*exponential)(const float* x, float* y, std::int64_t n);  ///< The kernels' own exp; for tests.
  void (*logarithm)(const float* x, float* y, std::int64_t n);    ///< The kernels' own log; for tests.
};

const KernelTable& avx512_table();
const KernelTable& avx2_table();
/// AVX-512 with other products of bfloat16.
ProductTable avx512_bf16_products();
ProductTable amx_products();

/// The table of active_isa(). Aborts with check_cpu's text on a CPU that none fits.
const KernelTable& table();

}  // namespace troupe::kernels
