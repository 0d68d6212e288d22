/// @file
/// Invariant 3 in production: at each published version the rank and every rollout worker score the same sequences; the bits must agree.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/rollout.h"

namespace troupe::actors {

/// The outcome of comparing one worker's scores with the rank's.
struct ProbeOutcome {
  std::uint64_t tokens = 0; ///< Compared, both paths.
  double diff_max = 0;
  std::string worker;
  PolicyVersion version;
};

class Probe {
 public:
  explicit Probe(int sequences) : sequences_max_(static_cast<std::size_t>(sequences)) {}

  /// Keeps the newest delivered sequences.
  void delivered(const std::vector<std::int32_t>& prompt, const std::vector<std::int32_t>& completion);
  /// What to score at a version, the same for everybody who asks, late pullers of an older version included. Absent while
  /// nothing was delivered, and for a version that was let go.
  [[nodiscard]] std::optional<ScoreProbe> order(PolicyVersion version, std::int32_t stage);
  /// Takes scores of the rank (no decode path) or of a worker; gives the comparisons that became possible.
  std::vector<ProbeOutcome> scored(const ProbeScored& scores);

 private:
  std::size_t sequences_max_;
  std::deque<ProbeSequence> recent_;
  static constexpr std::size_t kRounds = 4; // the newest versions; workers pull one of the last two
  struct Round {
    ScoreProbe order;
    std::map<std::string, ProbeScored> scores; // "" is the rank
  };
  std::map<PolicyVersion, Round> rounds_;
};

} // namespace troupe::actors
