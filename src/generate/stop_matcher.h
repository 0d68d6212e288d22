/// @file
/// Stop strings in text that arrives token by token.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::generate {

/// Finds the first occurrence of any stop string, also across the pieces.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  /// Appends text. Returns where the earliest stop string begins in the whole text, once one is complete.
  [[nodiscard]] std::optional<std::size_t> push(std::string_view piece);
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::vector<std::string> stops_;
  std::size_t longest_ = 0;
  std::string text_;
};

}  // namespace troupe::generate
