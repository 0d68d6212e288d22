/// @file
/// The commit of a checkpoint: prepared -> state copied -> written -> committed, one at a time, each phase with a
/// deadline. Whatever goes wrong before the last step leaves the previous checkpoint as it was. Old checkpoints are
/// removed only after a newer one is committed. The writer prepares the next save ahead, so that the order to copy
/// leaves in the same moment as the request, at the step edge; only a save that comes too early waits for the writer.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "protocol/options.h"
#include "protocol/types.h"

namespace troupe::protocol {

namespace checkpoint {

/// Save the state of `version`. `record`: JSON of everything but the tensors (ledger, cursors, RNG), kept as it is.
struct Request {
  PolicyVersion version;
  std::string record;
};
/// A writer is there: it is asked to prepare the next save.
struct WriterJoined {};
/// The writer died, with the memory it had prepared.
struct WriterLost {
  std::string reason;
};
/// The state may have other tensors from now on (a new stage): what was prepared for the next save does not count.
struct LayoutUnknown {};
/// The writer has memory for `save`.
struct Prepared {
  std::uint64_t save = 0;
};
/// Rank `rank` has copied its state of the right version into the writer's memory.
struct StateCopied {
  std::uint64_t save = 0;
  std::uint32_t rank = 0;
  PolicyVersion version;
};
/// All files are written, synced and read back against their checksums.
struct Written {
  std::uint64_t save = 0;
};
/// The record is in place and durable.
struct Committed {
  std::uint64_t save = 0;
};
struct Failed {
  std::uint64_t save = 0;
  std::string reason;
};
/// A new epoch: a save of an older one is aborted, its later messages are refused.
struct NewEpoch {
  std::uint32_t epoch = 0;
  std::uint32_t ranks = 1;  ///< Ranks of the new mesh.
};
/// What is on disk at the start.
struct Found {
  std::vector<PolicyVersion> versions;
};
using Event = std::variant<Request, WriterJoined, WriterLost, LayoutUnknown, Prepared, StateCopied, Written, Committed, Failed,
                           NewEpoch, Found, Wake>;

/// Get memory for the state. Idempotent; sent ahead of the request.
struct Prepare {
  std::uint64_t save = 0;
};
/// Every rank copies its state, in the order of its commands: before any train step asked for later. A rank that is
/// past `version` answers with the version it holds, and the save is given up.
struct CopyState {
  std::uint64_t save = 0;
  PolicyVersion version;
};
struct Write {
  std::uint64_t save = 0;
  std::string record;
};
struct Commit {
  std::uint64_t save = 0;
  PolicyVersion version;
};
/// Forget the save and remove what was written of it, unless it is committed.
struct Abort {
  std::uint64_t save = 0;
};
struct Saved {
  PolicyVersion version;
};
struct NotSaved {
  PolicyVersion version;
  Error error;  ///< kResourceExhausted: another save is running; kFenced; kTimeout; kUnavailable.
};
/// Remove these committed checkpoints, oldest first.
struct Remove {
  std::vector<PolicyVersion> versions;
};
using Effect = std::variant<Prepare, CopyState, Write, Commit, Abort, Saved, NotSaved, Remove, Note, ArmTimer>;

} // namespace checkpoint

class CheckpointCommit {
 public:
  explicit CheckpointCommit(const CheckpointCommitOptions& options, std::uint32_t epoch = 0, std::uint32_t ranks = 1);
  std::vector<checkpoint::Effect> handle(const checkpoint::Event& event, TimePoint now);

  [[nodiscard]] bool busy() const { return phase_ != Phase::kIdle; }
  /// The version committed last; of those found at the start, the greatest (epoch, step).
  [[nodiscard]] std::optional<PolicyVersion> newest() const;
  /// In the order of their commits: the first is removed first, a leftover of a higher step cannot outlive its turn.
  [[nodiscard]] const std::vector<PolicyVersion>& committed() const { return committed_; }

 private:
  enum class Phase { kIdle, kPreparing, kCopying, kWriting, kCommitting };
  void on(const checkpoint::Request& e);
  void on(const checkpoint::WriterJoined& e);
  void on(const checkpoint::WriterLost& e);
  void on(const checkpoint::LayoutUnknown& e);
  void on(const checkpoint::Prepared& e);
  void on(const checkpoint::StateCopied& e);
  void on(const checkpoint::Written& e);
  void on(const checkpoint::Committed& e);
  void on(const checkpoint::Failed& e);
  void on(const checkpoint::NewEpoch& e);
  void on(const checkpoint::Found& e);
  void on(const Wake& e);
  void enter(Phase phase, Duration deadline);
  void copy();
  void prepare_next();
  void abort(ErrorCode code, const std::string& reason);
  [[nodiscard]] std::string_view phase_name() const;

  CheckpointCommitOptions options_;
  std::uint32_t epoch_;
  std::uint32_t ranks_;
  Phase phase_ = Phase::kIdle;
  std::uint64_t save_ = 0;                // the present or last one
  std::optional<std::uint64_t> prepared_; // what the writer has memory for
  PolicyVersion version_;
  std::string record_;
  std::set<std::uint32_t> copied_;
  TimePoint deadline_{};
  std::vector<PolicyVersion> committed_;
  TimePoint now_{};
  std::vector<checkpoint::Effect> effects_;
};

} // namespace troupe::protocol
