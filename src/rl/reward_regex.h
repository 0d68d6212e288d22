/// @file
/// The regular expressions of rewards: PCRE2 with a match limit, so that no reply can stop the grader.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace troupe::rl {

/// A compiled pattern; immutable, may be used from several threads.
class RewardRegex {
 public:
  /// Errors: kInvalidConfig with the offset in the pattern and the reason.
  [[nodiscard]] static Result<RewardRegex> compile(std::string_view pattern, bool ignore_case);

  struct Match {
    std::string_view whole;
    std::optional<std::string_view> group; ///< The first group, where the pattern has one and it took part.
  };
  [[nodiscard]] bool has_group() const { return has_group_; }
  /// The last match in the text, or nothing. Text that is not UTF-8 never matches there.
  /// Errors: kResourceExhausted beyond the match limit.
  [[nodiscard]] Result<std::optional<Match>> last_match(std::string_view text) const;

 private:
  struct Free {
    void operator()(void* code) const;
  };
  std::unique_ptr<void, Free> code_;
  bool has_group_ = false;
};

} // namespace troupe::rl
