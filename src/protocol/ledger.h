/// @file
/// The fate of every prompt. Prompts are dispatched as groups of samples; each dispatch leaves exactly once, as
/// delivered (trained on) or as cancelled with a reason:
///
///     dispatched = delivered + cancelled + in flight            (checked after every operation, in every build)
///
/// Identity is (prompt id, sample index); an attempt number tells retries apart. The first complete result of a
/// sample wins, later ones are counted as duplicates. Part of the rollout director; no thread safety of its own.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "protocol/types.h"

namespace troupe::protocol {

/// Why a group was cancelled. Written into checkpoints: append, never renumber.
enum class CancelReason : std::uint8_t {
  kAttempts = 0,    ///< A sample failed as often as allowed.
  kStale = 1,       ///< The group would be older than the age bound.
  kZeroSignal = 2,  ///< All trainable rewards were equal: nothing to learn. Filtered, not failed.
  kRollback = 3,    ///< The epoch that dispatched it was rolled back; its prompt is dispatched anew.
  kStopped = 4,     ///< The run was stopped; its prompt is pending in the checkpoint.
  kFinished = 5,    ///< The stage had all its steps.
};
inline constexpr std::size_t kCancelReasons = 6;
[[nodiscard]] std::string_view to_string(CancelReason reason);

/// Counts of prompts (groups), over the whole run.
struct LedgerCounters {
  std::uint64_t dispatched = 0;
  std::uint64_t delivered = 0;
  std::array<std::uint64_t, kCancelReasons> cancelled_by{};  ///< Indexed by CancelReason.
  std::uint64_t in_flight = 0;                               ///< Running, complete or in a batch.
  std::uint64_t duplicates = 0;  ///< Results (samples) for a sample that had one.
  std::uint64_t late = 0;        ///< Results (samples) for a group that has left.
  std::uint64_t retries = 0;     ///< Samples issued again after a failure.

  [[nodiscard]] std::uint64_t cancelled() const;
  friend bool operator==(const LedgerCounters&, const LedgerCounters&) = default;
};

/// What the commit record keeps. Prompts below `next_prompt` that are not pending are settled and never issued again.
struct LedgerSnapshot {
  std::uint64_t next_prompt = 0;       ///< First prompt id that was never dispatched.
  std::vector<std::uint64_t> pending;  ///< Dispatched or returned, not settled; ascending.
  LedgerCounters counters;             ///< With `in_flight` as it was when the snapshot was taken.
  friend bool operator==(const LedgerSnapshot&, const LedgerSnapshot&) = default;
};
/// The snapshot after `prompts` were delivered; ids that were dispatched since it was taken are counted as dispatched, those between them
/// as pending.
[[nodiscard]] LedgerSnapshot after_delivery(LedgerSnapshot snapshot, const std::vector<std::uint64_t>& prompts);
/// The snapshot with what was in flight as if it had not been dispatched yet: it will be, under the same identities.
[[nodiscard]] LedgerSnapshot recalled(LedgerSnapshot snapshot);
[[nodiscard]] nlohmann::json to_json(const LedgerSnapshot& snapshot);
/// Errors: kCorrupt when a field is missing, of the wrong type, or the counts do not balance.
[[nodiscard]] Result<LedgerSnapshot> ledger_from_json(const nlohmann::json& json);

struct LedgerLimits {
  std::uint32_t group_size = 8;
  std::uint32_t attempts = 3;
  std::uint64_t groups_max = 16;              ///< Groups in flight at most (B).
  std::optional<std::uint64_t> prompt_limit;  ///< First prompt id that does not exist.
};

enum class SampleState : std::uint8_t { kWaiting, kAssigned, kDone };

/// One sample of a group in flight.
struct LedgerSample {
  SampleState state = SampleState::kWaiting;
  std::uint32_t attempt = 1;     ///< The attempt that is waiting, running or was accepted.
  WorkerId owner;                ///< Meaningful while kAssigned; of the accepted result when kDone.
  PolicyVersion oldest;          ///< Oldest version that touched it; meaningful once assigned.
  bool resume = false;           ///< Waiting with a handed-back prefix.
  TimePoint last_news{};         ///< When it was assigned or last heard of.
  double reward = 0;             ///< Meaningful when kDone.
  bool trainable = true;         ///< False when the loss mask hides the whole sample.
};

/// One group in flight.
struct LedgerGroup {
  std::uint64_t prompt = 0;
  std::uint64_t birth = 0;  ///< Ordinal of the dispatch; orders groups, replaced groups come last.
  std::vector<LedgerSample> samples;
  std::uint32_t done = 0;
  bool in_batch = false;  ///< Handed to the trainer.

  [[nodiscard]] bool complete() const { return done == samples.size(); }
  /// The oldest version that touched any sample so far; `otherwise` when none was assigned yet.
  [[nodiscard]] PolicyVersion oldest(PolicyVersion otherwise) const;
  /// True when the rewards of all trainable samples are equal, or none is trainable.
  [[nodiscard]] bool zero_signal() const;
};

class Ledger {
 public:
  explicit Ledger(const LedgerSnapshot& restored = {});

  /// Sets the limits of a stage. Only while nothing is in flight.
  void configure(const LedgerLimits& limits);

  /// Opens the next group: pending prompts first in ascending order, then fresh ones. Absent when `groups_max` are in
  /// flight or the stream of prompts is exhausted.
  std::optional<std::uint64_t> dispatch();
  [[nodiscard]] bool exhausted() const;  ///< No prompt is left to dispatch.

  /// Books a waiting sample on a worker that holds `version`. Returns its attempt number.
  std::uint32_t assign(SampleId id, WorkerId owner, PolicyVersion version, TimePoint now);

  enum class Accepted { kFirst, kGroupComplete, kDuplicate, kLate };
  struct Outcome {
    Accepted accepted;
    std::optional<WorkerId> obsolete;  ///< Another worker still computes the accepted sample.
  };
  /// The result of any attempt; the first wins.
  Outcome complete(SampleId id, WorkerId from, PolicyVersion oldest, double reward, bool trainable);

  enum class Retry { kWaiting, kExhausted, kIgnored };
  /// Attempt `attempt` of `owner` failed, or its owner died. kWaiting: assign it again (attempt number raised, from
  /// scratch). kExhausted: the caller must cancel the group. kIgnored: that attempt no longer counts.
  Retry fail(SampleId id, std::uint32_t attempt, WorkerId owner);
  /// The owner refused the sample or gave it back unfinished. Costs no attempt. False when ignored. With a prefix it
  /// keeps the age of the prefix (`oldest`, and what was known before).
  bool give_back(SampleId id, std::uint32_t attempt, WorkerId owner, PolicyVersion oldest, bool has_prefix);
  void news(SampleId id, WorkerId from, TimePoint now);

  void to_batch(std::uint64_t prompt);    ///< The complete group goes to the trainer.
  void deliver(std::uint64_t prompt);     ///< The trainer finished the step: the group leaves.
  /// The group leaves. With kStopped its prompt is pending again, for the run that resumes.
  void cancel(std::uint64_t prompt, CancelReason reason);
  /// Everything after `commit` is booked cancelled{rollback}, deliveries after it too; its pending prompts come first
  /// again.
  void rollback(const LedgerSnapshot& commit);

  [[nodiscard]] const std::map<std::uint64_t, LedgerGroup>& groups() const { return groups_; }  ///< By prompt id.
  [[nodiscard]] const LedgerGroup* find(std::uint64_t prompt) const;
  /// Absent when the group has left or the index is outside it.
  [[nodiscard]] const LedgerSample* sample(SampleId id) const;
  [[nodiscard]] std::uint64_t waiting() const { return waiting_; }  ///< Samples that no worker has.
  [[nodiscard]] const LedgerCounters& counters() const { return counters_; }
  [[nodiscard]] LedgerSnapshot snapshot() const;

 private:
  [[nodiscard]] LedgerSample* find_sample(SampleId id);
  void leave(std::uint64_t prompt);
  void check() const;

  LedgerLimits limits_;
  LedgerCounters counters_;
  std::uint64_t next_prompt_ = 0;
  std::uint64_t next_birth_ = 0;
  std::uint64_t waiting_ = 0;
  std::deque<std::uint64_t> pending_;  // ascending; dispatched before fresh prompts
  std::map<std::uint64_t, LedgerGroup> groups_;
};

} // namespace troupe::protocol
