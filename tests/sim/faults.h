/// @file
/// What goes wrong in a run, as a list: made from a seed, taken apart one by one when the run fails.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/units.h"

namespace troupe::sim {

enum class FaultKind : std::uint8_t {
  kLoseMessage,
  kDoubleMessage,
  kDelayMessage,
  kCrashWorker,   ///< kill -9 of a rollout worker; `pick` chooses which.
  kCrashRank,
  kCrashWriter,
  kCrashAgent,    ///< The node agent, and with it every worker.
  kCrashHead,     ///< The supervisor; resumed after `lasts`.
  kFreezeWorker,  ///< SIGSTOP for `lasts`; what arrives meanwhile is done on waking.
  kFreezeRank,
  kFreezeWriter,
  kFreezeHead,
  kFreezeAgent,
  kClockOfHead,   ///< The clock of one node jumps ahead by `lasts`.
  kClockOfRank,
  kClockBackOfHead,  ///< Back by `lasts`.
  kClockBackOfRank,
  kFullDisk,      ///< For `lasts`: neither control log nor checkpoints can be written.
  kScale,         ///< `troupe scale rollout=<pick % 7>`: no fault, but it comes at a bad moment.
  kStop,          ///< `troupe stop`, then --resume.
};

struct Fault {
  FaultKind kind = FaultKind::kLoseMessage;
  Duration at{};              ///< From the start of the run; of message faults: 0.
  std::uint64_t message = 0;  ///< Which message.
  std::uint64_t pick = 0;
  Duration lasts{};
};
using Faults = std::vector<Fault>;

[[nodiscard]] std::string to_string(const Fault& fault);

/// The faults of a seed within `span`. Which kinds occur at all differs from seed to seed.
[[nodiscard]] Faults faults_of(std::uint64_t seed, Duration span);

/// The smallest part of `faults` found that still fails: delta debugging, chunks first, then one by one. `fails` is
/// asked at most `runs_max` times.
[[nodiscard]] Faults minimise(Faults faults, const std::function<bool(const Faults&)>& fails, int runs_max);

} // namespace troupe::sim
