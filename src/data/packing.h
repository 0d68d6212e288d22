/// @file
/// Documents side by side in one row of tokens, without padding. Masks and targets come from the structure.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "data/dataset.h"

namespace troupe::data {

/// T tokens of whole documents. A row is one token as input.
struct PackedSequences {
  std::vector<std::int32_t> ids;       ///< [T]
  std::vector<std::int32_t> positions; ///< [T], from 0 in every document.
  std::vector<std::int32_t> targets;   ///< [T], the next id of the same document; -1 on the last row of a document.
  std::vector<std::uint8_t>
      loss_mask; ///< [T], 1 = the loss of this row (predicting its target) counts. Always 0 where target is -1.
  std::vector<std::pair<std::int32_t, std::int32_t>> documents; ///< [begin, end) of each document.

  [[nodiscard]] std::int64_t trained_tokens() const;
};

/// Appends one document.
void append(PackedSequences& packed, const Document& document);

/// Batches of at most `tokens_per_batch` tokens, documents in stream order and never cut.
class PackedStream {
 public:
  /// Borrows all three; they must outlive the stream. `examples` is not empty.
  PackedStream(std::span<const Example> examples, const PromptFormat& format, const Tokenizer& tokenizer,
               DatasetOptions options, std::uint64_t seed);

  /// The next batch: at least one document. Errors: as encode_example; also a document longer than a batch.
  [[nodiscard]] Result<PackedSequences> next();

  /// Saved with a checkpoint, given back to `seek`: the batches that follow are the same.
  [[nodiscard]] Cursor cursor() const { return order_.cursor(); }
  [[nodiscard]] Status seek(Cursor cursor) { return order_.seek(cursor); }

 private:
  std::span<const Example> examples_;
  const PromptFormat* format_;
  const Tokenizer* tokenizer_;
  DatasetOptions options_;
  IndexStream order_;
};

} // namespace troupe::data
