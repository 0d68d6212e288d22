/// @file
/// Head <-> rank <-> checkpoint writer: one commit.
#pragma once

#include "actors/messages/inspect_base.h"

#include <string>
#include <vector>

namespace troupe::actors {

/// Head -> rank: what does the state look like? Answered by StateLayoutIs, once an epoch: later saves exchange no metadata.
struct DescribeState {};
template <class Inspector>
bool inspect(Inspector& f, DescribeState& x) {
  return f.object(x).fields();
}

struct StateLayoutIs {
  std::string layout; ///< checkpoint::StateLayout as JSON.
  std::uint64_t bytes = 0;
};
template <class Inspector>
bool inspect(Inspector& f, StateLayoutIs& x) {
  return f.object(x).fields(f.field("layout", x.layout), f.field("bytes", x.bytes));
}

/// Head -> writer: get memory ready for a state of this layout. Answered by MemoryReady.
struct PrepareMemory {
  std::string layout;
  std::uint64_t bytes = 0;
};
template <class Inspector>
bool inspect(Inspector& f, PrepareMemory& x) {
  return f.object(x).fields(f.field("layout", x.layout), f.field("bytes", x.bytes));
}

struct MemoryReady {
  comm::RemoteRegion region;
};
template <class Inspector>
bool inspect(Inspector& f, MemoryReady& x) {
  return f.object(x).fields(f.field("region", x.region));
}

/// Head -> every rank: rank/0 keeps a copy of the state as it is now, before any later step, once all of them agree on its bits. What training
/// waits for is this copy alone.
struct SnapshotState {
  PolicyVersion version;
};
template <class Inspector>
bool inspect(Inspector& f, SnapshotState& x) {
  return f.object(x).fields(f.field("version", x.version));
}

/// Head -> rank: write the kept copy into the writer's memory, beside training. Answered by StateCopied.
struct CopyState {
  std::uint64_t save = 0; ///< Number of the save, echoed.
  PolicyVersion version;
  comm::RemoteRegion region;
};
template <class Inspector>
bool inspect(Inspector& f, CopyState& x) {
  return f.object(x).fields(f.field("save", x.save), f.field("version", x.version), f.field("region", x.region));
}

struct StateCopied {
  std::uint64_t save = 0;
  PolicyVersion version;
  bool ok = false;
  Error error;
  std::string record;       ///< The rank's part of the commit record: optimizer step, schedule, data cursor (JSON).
  std::uint64_t checksum = 0; ///< XXH3 of the whole region, so that the writer knows the copy is whole.
  double stall_seconds = 0; ///< How long training stood still.
};
template <class Inspector>
bool inspect(Inspector& f, StateCopied& x) {
  return f.object(x).fields(f.field("save", x.save), f.field("version", x.version), f.field("ok", x.ok), f.field("error", x.error), f.field("record", x.record),
                            f.field("checksum", x.checksum), f.field("stall_seconds", x.stall_seconds));
}

/// Head -> writer: make what is in the memory durable. Answered by Committed.
struct CommitState {
  std::uint64_t save = 0;
  std::string record; ///< The whole commit record except for files and checksums (JSON).
  std::uint64_t checksum = 0;
  std::int32_t keep = 2;
};
template <class Inspector>
bool inspect(Inspector& f, CommitState& x) {
  return f.object(x).fields(f.field("save", x.save), f.field("record", x.record),
                            f.field("checksum", x.checksum), f.field("keep", x.keep));
}

struct Committed {
  std::uint64_t save = 0;
  bool ok = false;
  Error error;
  std::string folder;
  std::uint64_t bytes = 0;
  double seconds = 0;
};
template <class Inspector>
bool inspect(Inspector& f, Committed& x) {
  return f.object(x).fields(f.field("save", x.save), f.field("ok", x.ok), f.field("error", x.error), f.field("folder", x.folder), f.field("bytes", x.bytes),
                            f.field("seconds", x.seconds));
}

} // namespace troupe::actors
