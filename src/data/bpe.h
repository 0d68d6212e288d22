/// @file
/// The merge loop: one piece of text to ids, the pair of lowest rank first, leftmost on ties, until none is left.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "data/pair_table.h"
#include "data/tokenizer_spec.h"

namespace troupe::data {

/// Hash of strings for tables that are looked up by views.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return hash64(text); }
};

/// Working memory and a cache of pieces; one per thread.
struct BpeScratch {
  struct CacheEntry {
    std::uint64_t hash = 0;
    std::uint8_t bytes = 0, count = 0; ///< count 0: free.
    std::array<char, 22> text;
    std::array<std::int32_t, 8> ids;
  };
  static constexpr std::size_t kCacheEntries = 1 << 14; ///< 1 MiB; direct-mapped.
  std::vector<CacheEntry> cache = std::vector<CacheEntry>(kCacheEntries);

  struct Node {
    std::int32_t id, previous, next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t left;              ///< Index of the left node.
    std::int32_t left_id, right_id; ///< What the nodes held; otherwise the candidate is stale.
    std::int32_t id;
  };
  std::vector<Node> nodes;
  std::vector<Candidate> heap;
  std::vector<std::int32_t> symbols;
};

/// The compiled vocabulary. Immutable.
class Bpe {
 public:
  /// `token_bytes`: by id, what each token stands for ("" = hole). Errors: kCorrupt naming the merge or token.
  [[nodiscard]] static Result<Bpe> create(const TokenizerSpec& spec, const std::vector<std::string>& token_bytes);

  /// Appends the ids of one piece.
  void encode(std::string_view piece, std::vector<std::int32_t>& out, BpeScratch& scratch) const;

 private:
  void symbols_of(std::string_view piece, std::vector<std::int32_t>& out) const;
  void encode_uncached(std::string_view piece, std::vector<std::int32_t>& out, BpeScratch& scratch) const;
  void merge_short(std::vector<std::int32_t>& symbols) const;
  void merge_long(std::vector<std::int32_t>& symbols, BpeScratch& scratch) const;
  [[nodiscard]] std::uint64_t merge_of(std::int32_t left, std::int32_t right) const {
    return merges_.find(pair_key(left, right));
  }

  PairTable merges_; // (left, right) -> rank << 32 | joined id
  std::array<std::int32_t, 256> byte_id_{};
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> pieces_; // whole pieces or characters
  bool byte_level_ = true, ignore_merges_ = false, fuse_unknown_ = false;
  std::int32_t unknown_ = -1;
};

} // namespace troupe::data
