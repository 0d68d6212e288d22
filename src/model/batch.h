/// @file
/// What a forward pass is fed: rows of tokens side by side, never padded, and which rows each of them may attend to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::model {

/// Training: rows [begin, end) attend causally to themselves, after all rows of [prefix_begin, prefix_end).
/// An empty prefix means none; a prompt that several completions share is a segment of its own and the prefix of each
/// of them.
struct Segment {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t prefix_begin = 0;
  std::int32_t prefix_end = 0;
};

/// Packed documents. Shapes: ids, positions [T]. Segments cover every row exactly once, in order; a prefix is (the
/// beginning of) an earlier segment that has no prefix itself. Positions restart at 0 in a document and go on after the
/// prefix in a completion.
struct Batch {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> positions;
  std::vector<Segment> segments;
};

/// Generation: rows [begin, end) are tokens cached, cached+1, ... of a sequence whose keys and values live in `pages`.
/// The pages hold the `cached` tokens already and have room for the new ones; token t is in pages[t / page_tokens].
/// Pages that hold only earlier tokens may be shared between sequences; those that are written may not.
struct KvSegment {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t cached = 0;
  std::vector<std::int32_t> pages;
  std::int32_t state = 0;  ///< Where the cache has states (KvCache::has_state): the sequence's own, after `cached` tokens.
};

/// New tokens of running sequences. Shapes: ids, positions [T]. Segments cover every row exactly once, in order.
struct CachedBatch {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> positions;
  std::vector<KvSegment> segments;
};

/// One document after another, positions from 0. Precondition: no document is empty.
[[nodiscard]] Batch pack_documents(std::span<const std::vector<std::int32_t>> documents);

/// A prompt and completions that share it: the prompt's rows once, then every completion's rows after them.
/// Appends to `batch`. Precondition: neither the prompt nor a completion is empty.
void append_group(Batch& batch, std::span<const std::int32_t> prompt,
                  std::span<const std::vector<std::int32_t>> completions);

/// Aborts unless the batch is what is said above: a batch is built by code, never by a user.
void check_batch(const Batch& batch);
void check_batch(const CachedBatch& batch, int page_tokens, int pages);
/// Aborts unless every sequence has a state of its own.
void check_states(const CachedBatch& batch, int states);

}  // namespace troupe::model
