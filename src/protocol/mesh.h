/// @file
/// The ranks of a run as one mesh: who is there, when all of them are told to build it, when it is whole, when it is lost.
///
/// A mesh is built once, by one incarnation of each rank, and has a number of its own; nothing is ever added to it. The loss of one member is
/// the loss of the mesh: the members that are left take part in the next one. A death that follows from a loss is not another one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "protocol/run_director.h"
#include "protocol/types.h"

namespace troupe::protocol {

namespace mesh {

/// The run director's order.
struct Wanted {
  run::BuildMesh order;
};
/// A rank is there and can be told.
struct Joined {
  WorkerId rank;
};
/// Its process has ended. `reason`: what is known of it; `cause`: its own last words, empty when it was killed from outside.
struct Left {
  WorkerId rank;
  std::string reason, cause;
};
/// A member holds the state and is connected to all others.
struct Ready {
  std::uint64_t mesh = 0;
  std::uint32_t rank = 0;
};
/// A member's collective failed, whoever is to blame. Deaths are known within the patience; after it the links are.
struct Broken {
  std::uint64_t mesh = 0;
  std::uint32_t rank = 0;
  std::string error;
};
/// The run director has given the mesh up.
struct Dropped {
  std::string reason;
};
using Event = std::variant<Wanted, Joined, Left, Ready, Broken, Dropped, Wake>;

/// Tell every member, then wait for Ready from all.
struct Build {
  std::uint64_t mesh = 0;
  run::BuildMesh order;
  std::vector<WorkerId> members; ///< By rank.
};
struct Whole {
  std::uint64_t mesh = 0;
  run::BuildMesh order;
};
/// To the members that are left: whoever waits for the others stops waiting. Comes before Lost.
struct Abort {
  std::uint64_t mesh = 0;
  std::string reason;
  std::vector<WorkerId> members;
};
/// For the run director's RankLost.
struct Lost {
  std::string who, cause;
};
using Effect = std::variant<Build, Whole, Abort, Lost, Note, ArmTimer>;

} // namespace mesh

class Mesh {
 public:
  /// `first`: number of the first mesh; numbers of a later term are higher. `patience`: between the first report of a broken collective and
  /// the verdict that nobody died.
  Mesh(std::uint32_t ranks, std::uint64_t first, Duration patience) : ranks_(ranks), number_(first), patience_(patience) {}
  std::vector<mesh::Effect> handle(const mesh::Event& event, TimePoint now);

  /// Of the mesh that is being built or is whole.
  [[nodiscard]] std::optional<std::uint64_t> number() const { return members_.empty() ? std::nullopt : std::optional(number_); }
  [[nodiscard]] std::uint32_t ranks() const { return ranks_; }

 private:
  void on(const mesh::Wanted& e);
  void on(const mesh::Joined& e);
  void on(const mesh::Left& e);
  void on(const mesh::Ready& e);
  void on(const mesh::Broken& e);
  void on(const mesh::Dropped& e);
  void on(const Wake& e);
  void build_when_all_are_there();
  void abort(const std::string& reason);
  void lost(const std::string& who, const std::string& reason, const std::string& cause);

  std::uint32_t ranks_;
  std::uint64_t number_;
  Duration patience_;
  std::map<std::uint32_t, WorkerId> present_;   // by rank
  std::optional<run::BuildMesh> order_;         // not yet whole
  std::vector<WorkerId> members_;               // of mesh `number_`; empty: there is none
  std::set<std::uint32_t> ready_;
  std::set<WorkerId> mourned_;                  // members of lost meshes that may still be dying of it
  std::optional<std::pair<TimePoint, std::string>> broken_; // when patience ends, and the first report
  TimePoint now_{};
  std::vector<mesh::Effect> effects_;
};

/// Where the ranks of a mesh find each other: a few keys, of the present mesh only. Bounded; answers are effects.
class MeshStore {
 public:
  static constexpr std::size_t kKeysPerRankMax = 64, kValueBytesMax = 65536, kWaitingPerRankMax = 64;
  struct Answer {
    WorkerId to;
    std::uint64_t request = 0;
    std::string value;
    std::optional<Error> error;
  };

  /// Forgets everything: only `mesh` is served from now on. What waits in an older one is refused. No mesh: none is served.
  [[nodiscard]] std::vector<Answer> open(std::optional<std::uint64_t> mesh, std::uint32_t ranks);
  /// A later value of a key replaces the earlier one. Values of other meshes are dropped.
  [[nodiscard]] std::vector<Answer> set(std::uint64_t mesh, const std::string& key, const std::string& value);
  /// Answered when the key is there. Errors in the answer: kFenced for another mesh; kResourceExhausted.
  [[nodiscard]] std::vector<Answer> get(std::uint64_t mesh, const WorkerId& from, std::uint64_t request, const std::string& key);

 private:
  struct Waiting {
    WorkerId from;
    std::uint64_t request = 0;
    std::string key;
  };
  std::optional<std::uint64_t> mesh_;
  std::uint32_t ranks_ = 0;
  std::map<std::string, std::string> values_;
  std::vector<Waiting> waiting_;
};

} // namespace troupe::protocol
