/// @file
/// Softmax attention over listed rows: sliding windows, sinks, keys and values of different widths or the same memory,
/// and compressed entries beside the tokens. What attention.h cannot do; it is the faster one where it can.
#pragma once

#include <cstdint>

namespace troupe::kernels {

/// Rows that lie evenly in memory: a part of a batch, or a page.
struct RowSpan {
  const float* rows = nullptr;
  std::int64_t stride = 0;  ///< Floats from row to row.
  std::int64_t count = 0;
};

/// What all segments share. In a row, kv head j has its key at j * key_dim and its value at value_offset + j * value_dim.
struct ListedShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  ///< Divides heads.
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t value_offset = 0;
  float scale = 1;
  std::int64_t window = 0;       ///< Tokens a query sees, itself included; 0: all before it.
  const float* sinks = nullptr;  ///< [heads], a logit that joins the denominator only; null: none.
};

/// The queries of one sequence. Query i sees tokens (before + i + 1 - window, before + i] and its chosen entries.
struct ListedSegment {
  const float* q = nullptr;  ///< [rows, heads, key_dim], q_stride floats from row to row.
  float* out = nullptr;      ///< [rows, heads, value_dim]
  std::int64_t rows = 0;
  std::int64_t q_stride = 0;
  std::int64_t out_stride = 0;
  std::int64_t before = 0;          ///< Tokens before the first query.
  const RowSpan* tokens = nullptr;  ///< At least before + rows of them.
  std::int64_t token_spans = 0;
  const RowSpan* entries = nullptr;
  std::int64_t entry_spans = 0;
  const std::int32_t* chosen = nullptr;  ///< [rows, chosen_max] entries each query sees, ascending; -1 ends a list.
  std::int64_t chosen_max = 0;
};

/// Determinism: a query's bits depend on the query and the rows it sees, in their order; not on spans, rows around it or
/// threads. A score has 16 lanes over the channels; the sum of exponentials has 64 lanes by place in the list, whose last
/// term is the sink; the output is one chain over the list, divided at its end.
/// Cost: 2 (key_dim + value_dim) operations per (query head, listed row); the heads of a kv head pass over 64 rows together.
void listed_attention(const ListedShape& shape, const ListedSegment* segments, std::int64_t count);

/// A segment of a backward pass. Its queries and their own tokens are rows [begin, begin + rows) of the batch.
struct ListedGradSegment {
  std::int64_t begin = 0, rows = 0;
  std::int64_t prefix_begin = 0, prefix_rows = 0;  ///< Tokens before the first query, rows of the batch, too.
  std::int64_t first_entry = 0;                    ///< Where its entries begin.
};

/// Arguments of `listed_attention_backward`: a packed batch of `rows` rows and `entry_rows` entries.
struct ListedGrad {
  const float* q = nullptr;     ///< [rows, heads, key_dim]
  const float* kv = nullptr;    ///< [rows, row]
  const float* entries = nullptr;  ///< [entry_rows, row]
  const float* dout = nullptr;  ///< [rows, heads, value_dim]
  const std::int32_t* chosen = nullptr;  ///< [rows, chosen_max], as in ListedSegment, counted in the segment.
  std::int64_t chosen_max = 0;
  std::int64_t rows = 0, entry_rows = 0, row = 0;
  float* dq = nullptr;  ///< These are written; dentries and dsinks only where there are entries and sinks.
  float* dkv = nullptr;
  float* dentries = nullptr;
  float* dsinks = nullptr;  ///< [heads]
};

/// From the inputs alone: scores are computed again.
/// Determinism: a query's gradient is one chain over its list. Those of listed rows and sinks: blocks of queries (256 /
///   heads of a kv head, or one query where it has entries) are dealt to 16 / kv_heads slices in turn; a slice adds its
///   blocks in order, then the slices are added in order. Bits do not depend on threads and instruction sets.
/// Cost: 2 (3 key_dim + 2 value_dim) operations per (query head, listed row). Memory: dkv and dentries once more per slice.
void listed_attention_backward(const ListedShape& shape, const ListedGrad& grad, const ListedGradSegment* segments,
                               std::int64_t count);

/// Arguments of `choose_entries`: which entries each query attends to, by the score
/// sum over heads of weight * relu(q . k) * scale. Source: research/models.md 7.4, "Indexer".
struct EntryChoice {
  const float* q = nullptr;        ///< [rows, heads, dim]
  const float* weights = nullptr;  ///< [rows, heads]
  std::int64_t rows = 0, heads = 0, dim = 0;
  float scale = 1;
  const RowSpan* keys = nullptr;  ///< One key per entry.
  std::int64_t key_spans = 0;
  std::int64_t before = 0;         ///< Tokens before the first query.
  std::int64_t ratio = 1;          ///< Query i can see (before + i + 1) / ratio entries.
  std::int64_t chosen_max = 0;     ///< Width of a list; the best ones are kept, ties go to the lower index.
  std::int32_t* chosen = nullptr;  ///< [rows, chosen_max], as in ListedSegment.
  float* scores = nullptr;         ///< [rows, score_stride], the visible entries' scores; null to skip.
  std::int64_t score_stride = 0;
};
void choose_entries(const EntryChoice& args);

}  // namespace troupe::kernels
