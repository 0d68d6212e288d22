#include "actors/rank/rank_mesh.h"

#include <caf/all.hpp>

#include <condition_variable>
#include <map>
#include <optional>

#include "actors/messages/all.h"
#include "comm/gloo/gloo_group.h"

namespace troupe::actors {

// Keys and values live in the head; answers come in through the control actor.
class HeadStore final : public comm::Store {
 public:
  HeadStore(RankMesh::Member me, std::uint64_t mesh) : me_(std::move(me)), mesh_(mesh) {}

  Status set(const std::string& key, const std::string& value) override {
    caf::anon_send(me_.head, StoreSet{mesh_, key, value});
    return {};
  }

  Result<std::string> get(const std::string& key, Duration deadline) override {
    std::unique_lock lock(mutex_);
    const std::uint64_t request = (mesh_ << 16) + ++requests_; // those of an earlier mesh were other ones
    open_[request] = std::nullopt;
    caf::anon_send(me_.head, StoreGet{mesh_, me_.rank, me_.incarnation, request, key});
    changed_.wait_for(lock, deadline, [&] { return open_[request].has_value() || closed_; });
    const auto answer = open_.extract(request).mapped();
    if (answer && answer->ok) return answer->value;
    if (closed_) return fail(ErrorCode::kCancelled, *closed_);
    if (answer) return tl::unexpected(answer->error);
    return fail(ErrorCode::kTimeout, "the head had no word of the other ranks within " + format_duration(deadline));
  }

  void answered(const StoreAnswer& answer) {
    const std::lock_guard lock(mutex_);
    const auto it = open_.find(answer.request);
    if (it == open_.end()) return;
    it->second = answer;
    changed_.notify_all();
  }

  void close(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    closed_ = reason;
    changed_.notify_all();
  }

 private:
  const RankMesh::Member me_;
  const std::uint64_t mesh_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t requests_ = 0;
  std::map<std::uint64_t, std::optional<StoreAnswer>> open_;
  std::optional<std::string> closed_;
};

void RankMesh::end_before(std::uint64_t mesh, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (mesh <= ended_before_) return;
  ended_before_ = mesh;
  reason_ = reason;
  if (group_) group_->abort(reason);
  if (store_) store_->close(reason);
}

void RankMesh::answered(const StoreAnswer& answer) {
  const std::lock_guard lock(mutex_);
  if (store_) store_->answered(answer);
}

Status RankMesh::connect(const BuildMesh& order) {
  std::shared_ptr<comm::Collectives> old;
  {
    const std::lock_guard lock(mutex_);
    number_ = order.mesh;
    old = std::exchange(group_, nullptr);
    store_.reset();
    if (order.mesh < ended_before_) return fail(ErrorCode::kFenced, "mesh " + std::to_string(order.mesh) + " is over: " + reason_);
    if (order.ranks > 1) store_ = std::make_shared<HeadStore>(me_, order.mesh);
  }
  old.reset();
  if (order.ranks == 1) return {};
  const comm::GroupOptions options{"mesh " + std::to_string(order.mesh & 0xffffffff), me_.rank, order.ranks, order.address, deadline_};
  TROUPE_TRY(std::shared_ptr<comm::Collectives> group, comm::connect_gloo(store_, options));
  const std::lock_guard lock(mutex_);
  group_ = std::move(group);
  if (order.mesh < ended_before_) group_->abort(reason_);
  return {};
}

} // namespace troupe::actors
