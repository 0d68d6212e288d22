/// @file
/// Finds added tokens in a text: leftmost first, longest there, by a trie over bytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "data/tokenizer_spec.h"

namespace troupe::data {

class AddedTokenMatcher {
 public:
  struct Match {
    std::size_t begin = 0, end = 0; ///< With the white space that lstrip and rstrip swallow.
    std::int32_t id = 0;
  };

  void insert(std::string_view content, const AddedToken& token);
  [[nodiscard]] bool empty() const { return tokens_.empty(); }
  /// The next token at or after `start`. Cost: one table look-up per byte that begins no token,
  /// else a walk of at most the longest name.
  [[nodiscard]] std::optional<Match> find(std::string_view text, std::size_t start) const;

 private:
  struct Edge {
    std::uint8_t byte;
    std::uint32_t node;
  };
  struct Node {
    std::vector<Edge> edges; // by byte
    std::int32_t token = -1; // index into tokens_
  };
  struct Token {
    std::int32_t id;
    bool lstrip, rstrip, single_word;
  };
  [[nodiscard]] std::optional<std::uint32_t> child(std::uint32_t node, std::uint8_t byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<Token> tokens_;
  std::array<bool, 256> first_{};
};

} // namespace troupe::data
