/// @file
/// A model that remembers: its logits are a hash of every KV entry that the pages give for the sequence, and of the
/// weights that wrote each. A page that is lost, mixed up, written by two or kept from old weights therefore changes
/// what is sampled.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "generate/core.h"

namespace troupe::generate {

class FakeForward final : public Forward {
 public:
  FakeForward(int pages, int page_tokens, int vocabulary)
      : page_tokens_(page_tokens),
        vocabulary_(vocabulary),
        entries_(static_cast<std::size_t>(pages * page_tokens), 0) {}

  std::uint64_t weights = 1;
  std::optional<std::int32_t> throws_on;  ///< Fails every batch that holds this id.
  std::optional<std::int32_t> nan_on;     ///< Gives NaN logits after this id.
  std::uint64_t wrong_percent = 0;        ///< Of the guesses.
  bool guess_fails = false;
  int runs = 0;
  int rows_run = 0;
  int copies = 0;

  void copy_pages(std::span<const PageCopy> list) override {
    for (const PageCopy& copy : list) {
      ++copies;
      for (int i = 0; i < page_tokens_; ++i) entry(copy.to, i) = entry(copy.from, i);
    }
  }

  Result<std::span<const float>> run(const model::CachedBatch& batch, std::span<const std::int32_t> rows) override {
    ++runs;
    for (const std::int32_t id : batch.ids)
      if (throws_on && id == *throws_on) return fail(ErrorCode::kInternal, "poisoned id");
    rows_run += static_cast<int>(batch.ids.size());
    std::vector<std::uint64_t> state(batch.ids.size());
    for (const auto& s : batch.segments) {
      for (std::int32_t r = s.begin; r < s.end; ++r) {
        const std::int32_t t = s.cached + r - s.begin;
        if (batch.positions[static_cast<std::size_t>(r)] != t) return fail(ErrorCode::kInternal, "wrong position");
        entry(s.pages[static_cast<std::size_t>(t / page_tokens_)], t % page_tokens_) =
            mix64(weights, static_cast<std::uint64_t>(batch.ids[static_cast<std::size_t>(r)]));
      }
    }
    for (const auto& s : batch.segments) {  // after all writes, as two segments must not write one page
      for (std::int32_t r = s.begin; r < s.end; ++r) {
        std::uint64_t h = 0;
        for (std::int32_t t = 0; t <= s.cached + r - s.begin; ++t)
          h = mix64(h, entry(s.pages[static_cast<std::size_t>(t / page_tokens_)], t % page_tokens_));
        state[static_cast<std::size_t>(r)] = h;
      }
    }
    logits_.clear();
    for (const std::int32_t row : rows) {
      const bool nan = nan_on && batch.ids[static_cast<std::size_t>(row)] == *nan_on;
      append_logits(state[static_cast<std::size_t>(row)], weights, nan);
    }
    return std::span<const float>(logits_);
  }

  /// Knows the entries of the sequence and the token after each row, so it can be right; it is not, as often as it is told to.
  Result<std::span<const float>> guess(const GuessBatch& guesses) override {
    if (guess_fails) return fail(ErrorCode::kInternal, "no guess");
    logits_.clear();
    for (const std::int32_t row : guesses.rows) {
      const auto segment = std::find_if(guesses.batch.segments.begin(), guesses.batch.segments.end(), [row](const auto& s) { return row < s.end; });
      std::uint64_t h = 0;
      for (std::int32_t t = 0; t <= guesses.batch.positions.at(static_cast<std::size_t>(row)); ++t)
        h = mix64(h, entry(segment->pages[static_cast<std::size_t>(t / page_tokens_)], t % page_tokens_));
      h = mix64(h, mix64(weights, static_cast<std::uint64_t>(guesses.next.at(static_cast<std::size_t>(row)))));
      append_logits(h, mix64(h, 99) % 100 < wrong_percent ? weights + 1000 : weights, false);
    }
    return std::span<const float>(logits_);
  }

  /// What the fake must say after `ids` when one version computed all of it.
  std::vector<float> expected(std::span<const std::int32_t> ids, std::uint64_t version) {
    std::uint64_t h = 0;
    for (const std::int32_t id : ids) h = mix64(h, mix64(version, static_cast<std::uint64_t>(id)));
    logits_.clear();
    append_logits(h, version, false);
    return logits_;
  }

 private:
  std::uint64_t& entry(std::int32_t page, int i) {
    return entries_.at(static_cast<std::size_t>(page * page_tokens_ + i));
  }
  void append_logits(std::uint64_t state, std::uint64_t head, bool nan) {
    const Rng rng(mix64(state, head), RngStream::kTest);
    for (int v = 0; v < vocabulary_; ++v)
      logits_.push_back(nan ? NAN : static_cast<float>(4 * rng.uniform_at(static_cast<std::uint64_t>(v)) - 2));
    logits_.push_back(1000);  // padding of the stride: nobody may look at it
  }

  int page_tokens_;
  int vocabulary_;
  std::vector<std::uint64_t> entries_;
  std::vector<float> logits_;
};

/// Each id is one piece of bytes; text of incomplete UTF-8 is held back by the stream and replaced by U+FFFD in decode.
class FakeCodec final : public TextCodec {
 public:
  explicit FakeCodec(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string bytes;
    for (const std::int32_t id : ids) bytes += pieces_.at(static_cast<std::size_t>(id));
    const std::size_t whole = complete(bytes);
    return whole == bytes.size() ? bytes : bytes.substr(0, whole) + "\xEF\xBF\xBD";
  }
  std::unique_ptr<TextStream> stream() const override { return std::make_unique<Stream>(*this); }

 private:
  struct Stream final : TextStream {
    explicit Stream(const FakeCodec& c) : codec(c) {}
    std::string push(std::int32_t id) override {
      held += codec.pieces_.at(static_cast<std::size_t>(id));
      std::string out = held.substr(0, complete(held));
      held.erase(0, out.size());
      return out;
    }
    const FakeCodec& codec;
    std::string held;
  };
  static std::size_t complete(const std::string& bytes) {
    std::size_t i = 0;
    while (i < bytes.size()) {
      const auto b = static_cast<unsigned char>(bytes[i]);
      const std::size_t length = b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
      if (i + length > bytes.size()) break;
      i += length;
    }
    return i;
  }
  std::vector<std::string> pieces_;
};

}  // namespace troupe::generate
