/// @file
/// Two fixed, version-tagged slots from which readers pull weights, and the reader's side of the same rule.
///
/// A slot is refilled only when its leases ended or expired. Expiry makes the slot a new registration (generation + 1),
/// so that a slow reader's transfer fails (kUnavailable) instead of reading torn weights; it takes the newer version.
/// Hosted by the weight store in the rank's process.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "protocol/options.h"
#include "protocol/types.h"

namespace troupe::protocol {

namespace publication {

/// The rank wants to copy `version` in, after its optimizer step. Idempotent.
struct Publish {
  PolicyVersion version;
};
/// The copy is complete, with checksums.
struct Filled {
  std::uint32_t slot = 0;
  PolicyVersion version;  ///< The one asked for, or a newer one of the same epoch: what the trainer held when it was copied.
};
struct FillFailed {
  std::uint32_t slot = 0;
  PolicyVersion version;
  std::string reason;
};
/// A reader asks for the newest version, at least `wanted`. Idempotent per (reader, request); a higher request number
/// gives up the reader's earlier leases.
struct Lease {
  WorkerId reader;
  std::uint64_t request = 0;
  PolicyVersion wanted;
};
/// The reader has all bytes (or gave up).
struct LeaseEnded {
  WorkerId reader;
  std::uint64_t request = 0;
};
struct ReaderGone {
  WorkerId reader;
};
/// A new epoch of the training state: older versions are no longer given out.
struct NewEpoch {
  std::uint32_t epoch = 0;
};
using Event = std::variant<Publish, Filled, FillFailed, Lease, LeaseEnded, ReaderGone, NewEpoch, Wake>;

/// Register the slot's memory anew: keys of earlier generations stop working. Done before the FillSlot that follows.
struct RenewSlot {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
};
/// Copy the live weights into the slot, then send Filled.
struct FillSlot {
  std::uint32_t slot = 0;
  PolicyVersion version;
};
/// `version` can be pulled from now on. Also the answer to a Publish that is repeated or was overtaken.
struct Ready {
  PolicyVersion version;
};
/// The publication did not happen: kFenced (older epoch or version) or kUnavailable (copy failed).
struct Rejected {
  PolicyVersion version;
  Error error;
};
struct Grant {
  WorkerId reader;
  std::uint64_t request = 0;
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  PolicyVersion version;
  TimePoint deadline;
};
/// kUnavailable: nothing new enough yet; kResourceExhausted: too many readers; kFenced: the reader is of a newer epoch.
struct Refuse {
  WorkerId reader;
  std::uint64_t request = 0;
  Error error;
};
/// The reader was too slow; its keys no longer work.
struct Expired {
  WorkerId reader;
  std::uint64_t request = 0;
  PolicyVersion version;
};
using Effect = std::variant<RenewSlot, FillSlot, Ready, Rejected, Grant, Refuse, Expired, Note, ArmTimer>;

} // namespace publication

class WeightPublication {
 public:
  static constexpr std::uint32_t kSlots = 2;

  explicit WeightPublication(const PublicationOptions& options, std::uint32_t epoch = 0);
  std::vector<publication::Effect> handle(const publication::Event& event, TimePoint now);

  /// The newest version that can be pulled.
  [[nodiscard]] std::optional<PolicyVersion> newest() const;
  [[nodiscard]] std::size_t leases() const;  ///< Open leases on both slots.

 private:
  enum class State { kEmpty, kFilling, kReady };
  struct Reader {
    WorkerId id;
    std::uint64_t request = 0;
    friend auto operator<=>(const Reader&, const Reader&) = default;
  };
  struct Slot {
    State state = State::kEmpty;
    PolicyVersion version;
    std::uint64_t generation = 1;
    bool expired = false;  // a lease ended without its reader's word: renew before the next fill
    std::map<Reader, TimePoint> leases;
  };

  void on(const publication::Publish& e);
  void on(const publication::Filled& e);
  void on(const publication::FillFailed& e);
  void on(const publication::Lease& e);
  void on(const publication::LeaseEnded& e);
  void on(const publication::ReaderGone& e);
  void on(const publication::NewEpoch& e);
  void on(const Wake& e);
  void expire();
  void fill();
  void arm();
  [[nodiscard]] std::optional<std::uint32_t> newest_slot() const;

  PublicationOptions options_;
  std::uint32_t epoch_;
  std::array<Slot, kSlots> slots_;
  std::optional<PolicyVersion> wanted_;  // waits for a slot
  TimePoint now_{};
  std::vector<publication::Effect> effects_;
};

/// The reader's side: which weights it holds, and what it may load over them. Full versions and deltas alike.
class HeldWeights {
 public:
  /// Checks an offer before any byte is loaded. `base`: the version a delta applies to, absent for full weights.
  /// Errors: kFenced for an older epoch, kAlreadyExists for a version it holds or has passed, kUnavailable for a delta
  /// whose base it does not hold.
  [[nodiscard]] Status offer(PolicyVersion version, std::optional<PolicyVersion> base) const;
  /// Takes the version after all bytes arrived. On a wrong digest the old weights stay. Errors: as `offer`, and
  /// kCorrupt.
  Status accept(PolicyVersion version, std::optional<PolicyVersion> base, std::uint64_t digest, std::uint64_t expected);
  [[nodiscard]] std::optional<PolicyVersion> version() const { return version_; }

 private:
  std::optional<PolicyVersion> version_;
};

} // namespace troupe::protocol
