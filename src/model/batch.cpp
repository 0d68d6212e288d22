#include "model/batch.h"

#include <algorithm>

#include "base/check.h"

namespace troupe::model {

namespace {

void append_rows(Batch& batch, std::span<const std::int32_t> ids, std::int32_t first_position) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    batch.ids.push_back(ids[i]);
    batch.positions.push_back(first_position + static_cast<std::int32_t>(i));
  }
}

std::int32_t rows(const Batch& batch) { return static_cast<std::int32_t>(batch.ids.size()); }

bool positions_fit(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& positions) {
  return ids.size() == positions.size() &&
         std::all_of(positions.begin(), positions.end(), [](std::int32_t p) { return p >= 0; });
}

}  // namespace

Batch pack_documents(std::span<const std::vector<std::int32_t>> documents) {
  Batch batch;
  for (const auto& document : documents) {
    TROUPE_CHECK(!document.empty(), "a document has at least one token");
    const std::int32_t begin = rows(batch);
    append_rows(batch, document, 0);
    batch.segments.push_back({begin, rows(batch)});
  }
  return batch;
}

void append_group(Batch& batch, std::span<const std::int32_t> prompt,
                  std::span<const std::vector<std::int32_t>> completions) {
  TROUPE_CHECK(!prompt.empty(), "a prompt has at least one token");
  const std::int32_t begin = rows(batch);
  append_rows(batch, prompt, 0);
  const std::int32_t end = rows(batch);
  batch.segments.push_back({begin, end});
  for (const auto& completion : completions) {
    TROUPE_CHECK(!completion.empty(), "a completion has at least one token");
    const std::int32_t first = rows(batch);
    append_rows(batch, completion, end - begin);
    batch.segments.push_back({first, rows(batch), begin, end});
  }
}

void check_batch(const Batch& batch) {
  TROUPE_CHECK(positions_fit(batch.ids, batch.positions), "one position, not negative, per id");
  std::int32_t next = 0;
  for (std::size_t i = 0; i < batch.segments.size(); ++i) {
    const Segment& segment = batch.segments[i];
    TROUPE_CHECK(segment.begin == next && segment.end > segment.begin,
                 "segments cover the rows in order, none is empty");
    next = segment.end;
    if (segment.prefix_end == segment.prefix_begin) continue;
    const auto owner =
        std::lower_bound(batch.segments.begin(), batch.segments.begin() + static_cast<std::ptrdiff_t>(i),
                         segment.prefix_begin, [](const Segment& s, std::int32_t row) { return s.begin < row; });
    TROUPE_CHECK(segment.prefix_end > segment.prefix_begin && segment.prefix_end <= segment.begin,
                 "a prefix lies before its completion");
    TROUPE_CHECK(owner->begin == segment.prefix_begin && owner->end >= segment.prefix_end &&
                     owner->prefix_end == owner->prefix_begin,
                 "a prefix begins where an earlier segment without prefix begins, and ends within it");
  }
  TROUPE_CHECK(next == rows(batch), "segments cover the rows in order");
}

void check_batch(const CachedBatch& batch, int page_tokens, int pages) {
  TROUPE_CHECK(positions_fit(batch.ids, batch.positions), "one position, not negative, per id");
  std::int32_t next = 0;
  for (const KvSegment& segment : batch.segments) {
    TROUPE_CHECK(segment.begin == next && segment.end > segment.begin && segment.cached >= 0,
                 "segments cover the rows in order, none is empty");
    next = segment.end;
    const std::int64_t tokens = std::int64_t{segment.cached} + segment.end - segment.begin;
    TROUPE_CHECK(tokens <= static_cast<std::int64_t>(segment.pages.size()) * page_tokens,
                 "a sequence has more tokens than its pages hold");
    TROUPE_CHECK(
        std::all_of(segment.pages.begin(), segment.pages.end(), [&](std::int32_t p) { return p >= 0 && p < pages; }),
        "a page number lies outside the cache");
  }
  TROUPE_CHECK(next == static_cast<std::int32_t>(batch.ids.size()), "segments cover the rows in order");
}

void check_states(const CachedBatch& batch, int states) {
  std::vector<bool> taken(static_cast<std::size_t>(states));
  for (const KvSegment& segment : batch.segments) {
    TROUPE_CHECK(segment.state >= 0 && segment.state < states, "a state number lies outside the cache");
    TROUPE_CHECK(!taken[static_cast<std::size_t>(segment.state)], "two sequences have the same state");
    taken[static_cast<std::size_t>(segment.state)] = true;
  }
}

}  // namespace troupe::model
