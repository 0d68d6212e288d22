/// @file
/// A rank's part in the mesh: the store that lives in the head, and the group of the present mesh.
#pragma once

#include <caf/actor.hpp>

#include <memory>
#include <mutex>
#include <string>

#include "actors/messages/mesh.h"
#include "base/units.h"
#include "comm/collectives.h"

namespace troupe::actors {

class HeadStore;

/// `connect` and `group` belong to the work thread, everything else to the control actor: it stays free while the work thread waits for others.
class RankMesh {
 public:
  struct Member {
    caf::actor head;
    std::uint32_t rank = 0, incarnation = 0;
  };
  RankMesh(Member me, Duration deadline) : me_(std::move(me)), deadline_(deadline) {}
  ~RankMesh() { end_before(UINT64_MAX, "this rank ends"); }
  RankMesh(const RankMesh&) = delete;
  RankMesh& operator=(const RankMesh&) = delete;

  /// Meshes with a lower number than `mesh` end: what waits in them returns with an error that gives the reason.
  void end_before(std::uint64_t mesh, const std::string& reason);
  void answered(const StoreAnswer& answer);

  /// Joins the mesh, unless it has ended already. One rank alone needs no group. Blocking, at most the deadline.
  [[nodiscard]] Status connect(const BuildMesh& order);
  /// Of the present mesh; null for a rank alone. Also null after a failed `connect`.
  [[nodiscard]] comm::Collectives* group() const { return group_.get(); }
  [[nodiscard]] std::uint64_t number() const { return number_; }

 private:
  const Member me_;
  const Duration deadline_;
  std::uint64_t number_ = 0; // work thread
  std::mutex mutex_;
  std::uint64_t ended_before_ = 0; // meshes with lower numbers are over
  std::string reason_;
  std::shared_ptr<HeadStore> store_;
  std::shared_ptr<comm::Collectives> group_;
};

} // namespace troupe::actors
