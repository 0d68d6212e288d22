/// @file
/// One run under a list of faults.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sim/faults.h"
#include "sim/head.h"

namespace troupe::sim {

enum class Mode : std::uint8_t {
  kSafety,  ///< Faults all along: the invariants hold, and nothing more is asked for.
  kHeal,    ///< The faults stop, and then the run ends within a bound.
};

inline constexpr Duration kFaultsLast = std::chrono::seconds(25);   ///< In kHeal.
inline constexpr Duration kSafetyLasts = std::chrono::seconds(50);  ///< Length of a run of kSafety.

/// What the cores had to deal with, summed over the lives of a run.
struct Trouble {
  std::uint64_t events = 0, messages = 0, duplicates = 0, late = 0, retries = 0, stale = 0, attempts = 0, filtered = 0, rolled_back = 0;
  std::uint64_t fenced = 0, stalls = 0, evaluated = 0, epochs = 0;
  std::uint64_t heads = 0, warm = 0, ahead = 0, cold = 0, dropped_records = 0, commits = 0, done = 0;
  std::uint64_t faults[static_cast<std::size_t>(FaultKind::kStop) + 1] = {};  ///< That struck, by kind.

  void add(const Head& head);
  Trouble& operator+=(const Trouble& other);
};

struct Outcome {
  std::string violation;  ///< Empty: all is well.
  std::string story;      ///< The last lines of a run that failed.
  Duration took{};
  Trouble trouble;
};

/// `also`: one more invariant, asked after every event.
[[nodiscard]] Outcome simulate(std::uint64_t seed, Mode mode, const Faults& faults, const std::function<void(const Trouble&)>& also = {});

/// The faults that simulate() is given for a seed.
[[nodiscard]] Faults faults_of(std::uint64_t seed, Mode mode);

/// What a person needs of a failing seed: the shortest list of faults found that still makes it fail, and the story of that run.
[[nodiscard]] std::string explain(std::uint64_t seed, Mode mode, const Faults& faults, const std::function<void(const Trouble&)>& also = {});

} // namespace troupe::sim
