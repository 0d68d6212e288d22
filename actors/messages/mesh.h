/// @file
/// Head <-> rank: the mesh of all ranks. Every message carries the number of the mesh it belongs to; those of another one are dropped.
#pragma once

#include "actors/messages/inspect_base.h"

#include <string>

namespace troupe::actors {

/// Head -> every rank: hold the state of `version`: of a commit, or, with an empty folder, of the start; and connect to the other ranks.
/// Whatever the rank does in an older mesh ends. Answered by MeshReady or MeshBroken.
struct BuildMesh {
  PolicyVersion version;
  std::string checkpoint; ///< Folder of a commit.
  bool held = false;      ///< The ranks have this very state: they keep it.
  std::uint64_t mesh = 0;
  std::uint32_t ranks = 1;
  std::string address;    ///< Of the rank's machine: what its collectives bind to.
};
template <class Inspector>
bool inspect(Inspector& f, BuildMesh& x) {
  return f.object(x).fields(f.field("version", x.version), f.field("checkpoint", x.checkpoint), f.field("held", x.held), f.field("mesh", x.mesh),
                            f.field("ranks", x.ranks), f.field("address", x.address));
}

/// Rank -> head: it holds the state, is connected to all others, and they hold the same bits.
struct MeshReady {
  PolicyVersion version;
  std::uint64_t mesh = 0;
  std::uint32_t rank = 0;
  std::uint64_t parameters = 0;
};
template <class Inspector>
bool inspect(Inspector& f, MeshReady& x) {
  return f.object(x).fields(f.field("version", x.version), f.field("mesh", x.mesh), f.field("rank", x.rank), f.field("parameters", x.parameters));
}

/// Rank -> head: a collective failed. The rank waits for the next BuildMesh.
struct MeshBroken {
  std::uint64_t mesh = 0;
  std::uint32_t rank = 0;
  Error error;
};
template <class Inspector>
bool inspect(Inspector& f, MeshBroken& x) {
  return f.object(x).fields(f.field("mesh", x.mesh), f.field("rank", x.rank), f.field("error", x.error));
}

/// Head -> rank: somebody is lost; whoever waits for the others in this mesh stops waiting, at once.
struct AbortMesh {
  std::uint64_t mesh = 0;
  std::string reason;
};
template <class Inspector>
bool inspect(Inspector& f, AbortMesh& x) {
  return f.object(x).fields(f.field("mesh", x.mesh), f.field("reason", x.reason));
}

/// Rank -> head: a key of the mesh's store (protocol::MeshStore). Not answered.
struct StoreSet {
  std::uint64_t mesh = 0;
  std::string key, value;
};
template <class Inspector>
bool inspect(Inspector& f, StoreSet& x) {
  return f.object(x).fields(f.field("mesh", x.mesh), f.field("key", x.key), f.field("value", x.value));
}

/// Rank -> head: answered by StoreAnswer as soon as the key is there.
struct StoreGet {
  std::uint64_t mesh = 0;
  std::uint32_t rank = 0, incarnation = 0;
  std::uint64_t request = 0;
  std::string key;
};
template <class Inspector>
bool inspect(Inspector& f, StoreGet& x) {
  return f.object(x).fields(f.field("mesh", x.mesh), f.field("rank", x.rank), f.field("incarnation", x.incarnation), f.field("request", x.request),
                            f.field("key", x.key));
}

struct StoreAnswer {
  std::uint64_t request = 0;
  bool ok = false;
  std::string value;
  Error error;
};
template <class Inspector>
bool inspect(Inspector& f, StoreAnswer& x) {
  return f.object(x).fields(f.field("request", x.request), f.field("ok", x.ok), f.field("value", x.value), f.field("error", x.error));
}

} // namespace troupe::actors
