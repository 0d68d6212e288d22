/// @file
/// Graders: reply and reference answer in, number out. A reply without an answer scores 0; only a wrong set-up is an error.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rl/options.h"

namespace troupe::rl {

struct Score {
  double value = 0;
  bool answered = false; ///< Whether the reply held an answer at all.
  std::string extracted; ///< What was compared, for the sample log.
};

/// Immutable; may be used from several threads. Never throws.
class Reward {
 public:
  virtual ~Reward() = default;
  /// Errors: kInvalidArgument when the reference answer cannot be used by this grader (a number grader and "n/a");
  /// kResourceExhausted when a regular expression exceeds its match limit on this reply.
  [[nodiscard]] virtual Result<Score> score(std::string_view reply, std::string_view answer) const = 0;
};

struct RewardRow {
  std::string_view type;
  std::string_view help;
  Result<std::unique_ptr<Reward>> (*create)(const RewardOptions&);
};
[[nodiscard]] std::span<const RewardRow> rewards();

/// Errors: kInvalidConfig: unknown type (with the known ones), bad pattern (with its offset), sum without parts.
[[nodiscard]] Result<std::unique_ptr<Reward>> make_reward(const RewardOptions& options);

} // namespace troupe::rl
