#include "data/packing.h"

#include <algorithm>

#include "base/check.h"

namespace troupe::data {

std::int64_t PackedSequences::trained_tokens() const { return std::count(loss_mask.begin(), loss_mask.end(), 1); }

void append(PackedSequences& packed, const Document& document) {
  TROUPE_CHECK(document.ids.size() == document.sampled.size(), "one mask entry per token");
  const auto begin = static_cast<std::int32_t>(packed.ids.size());
  const std::size_t n = document.ids.size();
  packed.ids.insert(packed.ids.end(), document.ids.begin(), document.ids.end());
  for (std::size_t i = 0; i < n; ++i) {
    packed.positions.push_back(static_cast<std::int32_t>(i));
    const bool last = i + 1 == n; // nothing of this document follows, and the next document is none of its business
    packed.targets.push_back(last ? -1 : document.ids[i + 1]);
    packed.loss_mask.push_back(last ? std::uint8_t{0} : document.sampled[i + 1]);
  }
  packed.documents.emplace_back(begin, begin + static_cast<std::int32_t>(n));
}

PackedStream::PackedStream(std::span<const Example> examples, const PromptFormat& format, const Tokenizer& tokenizer,
                           DatasetOptions options, std::uint64_t seed)
    : examples_(examples),
      format_(&format),
      tokenizer_(&tokenizer),
      options_(std::move(options)),
      order_(examples.size(), seed, options_.shuffle) {}

Result<PackedSequences> PackedStream::next() {
  PackedSequences packed;
  const auto budget = static_cast<std::size_t>(options_.tokens_per_batch);
  while (true) {
    const Example& example = examples_[order_.peek()];
    TROUPE_TRY(const auto documents, encode_example(example, *format_, *tokenizer_, options_));
    std::size_t tokens = 0;
    for (const Document& document : documents) tokens += document.ids.size();
    if (packed.ids.size() + tokens > budget) {
      if (!packed.ids.empty()) return packed; // the example opens the next batch
      return fail(ErrorCode::kInvalidArgument,
                  "the document has " + std::to_string(tokens) + " tokens and a batch only " + std::to_string(budget) +
                      "; raise tokens_per_batch",
                  options_.path + ":" + std::to_string(example.line));
    }
    for (const Document& document : documents) append(packed, document);
    order_.advance();
  }
}

} // namespace troupe::data
