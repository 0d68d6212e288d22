/// @file
/// What sequences keep between their tokens, for all layers: pages, and a state where a part has one. Which sequence owns
/// which page and which state is generate/'s business.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "model/batch.h"
#include "model/spec.h"

namespace troupe::model {

/// What one layer keeps. Per token: key and value heads in the kernels' own order, or a row of numbers. Per `ratio`
/// tokens: an entry, in the page of the last of them. Per sequence: a state, which cannot go back.
struct CacheShape {
  std::int64_t head_floats = 0;  ///< Numbers of the keys, and of the values, of a token.
  std::int64_t row_floats = 0;
  std::int64_t entry_floats = 0;
  std::int64_t ratio = 0;  ///< 0: no entries.
  std::int64_t state_floats = 0;
};
[[nodiscard]] CacheShape cache_of(const AttentionSpec& attention);
/// Bytes of a token's page memory in one layer, an entry counting by the token.
[[nodiscard]] double bytes_per_token(const CacheShape& shape, kernels::Precision precision);
/// Whether block `block` for further tokens can run over a cache, to guess a sequence's next token but one: it must keep no state, because guesses are
/// taken back.
[[nodiscard]] bool can_guess(const ModelSpec& spec, std::size_t block = 0);
/// Whether grouped-query attention can use kernels/attention.h, and its pages.
[[nodiscard]] bool uses_head_pages(const AttentionSpec& attention);

/// Pages of `page_tokens` tokens and `states` states. A number is valid in every layer. Keys and values of heads lie in the
/// precision of the products that read them (kernels::KvPage); all else is float32. Memory is untouched until it is written.
class KvCache {
 public:
  /// `further`: with room for the blocks for further tokens, behind the layers. Preconditions: pages >= 1; page_tokens a multiple of 16. Aborts
  /// when the address space cannot be reserved.
  KvCache(const ModelSpec& spec, int pages, int page_tokens, int states = 1, bool further = false,
          kernels::Precision precision = kernels::Precision::kFloat32);

  /// Bytes that one page, or the two states of a sequence, take over all layers.
  [[nodiscard]] static std::int64_t bytes_per_page(const ModelSpec& spec, int page_tokens, bool further = false,
                                                   kernels::Precision precision = kernels::Precision::kFloat32);
  [[nodiscard]] static std::int64_t bytes_per_state(const ModelSpec& spec);

  [[nodiscard]] int pages() const { return pages_; }
  [[nodiscard]] int page_tokens() const { return page_tokens_; }
  [[nodiscard]] int states() const { return states_; }
  [[nodiscard]] kernels::Precision precision() const { return precision_; }
  /// Whether any layer has a state.
  [[nodiscard]] bool has_state() const { return state_floats_ > 0; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  /// Copies one page of every layer (copy on write of a shared page that is not full).
  void copy_page(int source, int destination);
  /// Copies what `source` was after `tokens` tokens: its newest state, or the one before its last pass.
  void copy_state(int source, int destination, std::int64_t tokens);
  /// A forward pass over these sequences begins: every state goes on from where its sequence's `cached` tokens left it. The
  /// one before is kept, so that a pass that failed can be repeated. Aborts where there is no such state.
  void open_states(std::span<const KvSegment> segments);
  /// The pass is complete.
  void close_states(std::span<const KvSegment> segments);

  /// The memory of a page in one layer, in the kernels' own order.
  [[nodiscard]] kernels::KvPage page(int layer, int index) const;
  /// Its rows, one a token, CacheShape::row_floats each.
  [[nodiscard]] float* rows(int layer, int index) const;
  /// Its entries: those whose last token lies in the page.
  [[nodiscard]] float* entries(int layer, int index) const;
  /// Of the newest pass, begun or complete.
  [[nodiscard]] float* state(int layer, int index) const;
  [[nodiscard]] const CacheShape& shape(int layer) const { return layers_[static_cast<std::size_t>(layer)].shape; }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(float* memory) const;
  };
  struct Layer {
    CacheShape shape;
    std::int64_t page_floats = 0;
    std::int64_t offset = 0;        ///< Floats before the layer's first page.
    std::int64_t state_offset = 0;  ///< Floats of a state before the layer's.
  };
  /// Two states of a sequence, by turns: tokens behind each of them (-1: none) and which one is newer.
  struct Turns {
    std::array<std::int64_t, 2> tokens = {-1, -1};
    int newest = 0;
  };
  [[nodiscard]] float* start(int layer, int index) const;
  [[nodiscard]] std::int64_t head_words(int layer) const;
  [[nodiscard]] float* whole_state(int index, int turn) const;
  [[nodiscard]] int turn_of(int index, std::int64_t tokens) const;

  int pages_;
  int page_tokens_;
  int states_;
  kernels::Precision precision_;
  std::int64_t state_floats_ = 0;  ///< Of all layers.
  std::int64_t first_state_ = 0;   ///< Floats before the states.
  std::int64_t bytes_ = 0;
  std::vector<Layer> layers_;
  std::vector<Turns> turns_;
  std::unique_ptr<float, Unmap> memory_;
};

}  // namespace troupe::model
