#include "protocol/mesh.h"

#include <algorithm>
#include <utility>

namespace troupe::protocol {

using namespace mesh;

std::vector<Effect> Mesh::handle(const Event& event, TimePoint now) {
  effects_.clear();
  now_ = now;
  std::visit([this](const auto& e) { on(e); }, event);
  return std::exchange(effects_, {});
}

void Mesh::on(const Wanted& e) {
  order_ = e.order;
  if (!members_.empty()) abort("a new mesh is wanted"); // nothing was lost: the state is what is new
  build_when_all_are_there();
}

void Mesh::on(const Joined& e) {
  if (e.rank.index >= ranks_) return; // of a run that had more
  present_[e.rank.index] = e.rank;
  build_when_all_are_there();
}

void Mesh::on(const Left& e) {
  const auto it = present_.find(e.rank.index);
  if (it != present_.end() && it->second == e.rank) present_.erase(it);
  if (mourned_.erase(e.rank) > 0 || e.rank.index >= ranks_) return;
  std::erase(members_, e.rank); // nobody to tell
  lost(worker_name(e.rank), e.reason, e.cause);
}

void Mesh::on(const Ready& e) {
  if (members_.empty() || e.mesh != number_ || !order_ || e.rank >= ranks_) return;
  ready_.insert(e.rank);
  if (ready_.size() < ranks_) return;
  effects_.emplace_back(Whole{number_, *std::exchange(order_, std::nullopt)});
}

void Mesh::on(const Broken& e) {
  if (members_.empty() || e.mesh != number_ || e.rank >= ranks_) return;
  const std::string who = "rank/" + std::to_string(e.rank);
  effects_.emplace_back(Note{LogLevel::kWarning, who + " reports: " + e.error});
  if (broken_) return;
  broken_.emplace(now_ + patience_, who + ": " + e.error);
  effects_.emplace_back(ArmTimer{broken_->first});
}

void Mesh::on(const Dropped& e) { abort(e.reason); }

void Mesh::on(const Wake&) {
  if (!broken_) return;
  if (now_ < broken_->first) {
    effects_.emplace_back(ArmTimer{broken_->first});
    return;
  }
  const std::string report = broken_->second;
  lost("the mesh (" + report + ")", report, {});
}

void Mesh::build_when_all_are_there() {
  if (!order_ || !members_.empty() || present_.size() < ranks_) return;
  ++number_;
  ready_.clear();
  for (const auto& [index, rank] : present_) {
    members_.push_back(rank);
    mourned_.erase(rank); // it lives: its next death is a loss of its own
  }
  effects_.emplace_back(Build{number_, *order_, members_});
}

// The members that are left may yet die of it: that is part of this loss.
void Mesh::abort(const std::string& reason) {
  broken_.reset();
  if (members_.empty()) return;
  mourned_.insert(members_.begin(), members_.end());
  effects_.emplace_back(Abort{number_, reason, std::exchange(members_, {})});
}

void Mesh::lost(const std::string& who, const std::string& reason, const std::string& cause) {
  abort(reason.find(who) == std::string::npos ? who + " is gone: " + reason : reason);
  broken_.reset();
  order_.reset(); // the run director orders anew
  effects_.emplace_back(Lost{who, cause});
}

std::vector<MeshStore::Answer> MeshStore::open(std::optional<std::uint64_t> mesh, std::uint32_t ranks) {
  std::vector<Answer> answers;
  for (const Waiting& w : std::exchange(waiting_, {}))
    answers.push_back({w.from, w.request, "", Error{ErrorCode::kFenced, "the mesh is no longer built", ""}});
  mesh_ = mesh;
  ranks_ = ranks;
  values_.clear();
  return answers;
}

std::vector<MeshStore::Answer> MeshStore::set(std::uint64_t mesh, const std::string& key, const std::string& value) {
  std::vector<Answer> answers;
  const bool room = values_.contains(key) || values_.size() < kKeysPerRankMax * ranks_;
  if (mesh_ != mesh || value.size() > kValueBytesMax || !room) return answers; // whoever waits for it runs into its deadline
  values_[key] = value;
  std::erase_if(waiting_, [&](const Waiting& w) {
    if (w.key != key) return false;
    answers.push_back({w.from, w.request, value, {}});
    return true;
  });
  return answers;
}

std::vector<MeshStore::Answer> MeshStore::get(std::uint64_t mesh, const WorkerId& from, std::uint64_t request, const std::string& key) {
  if (mesh_ != mesh)
    return {{from, request, "", Error{ErrorCode::kFenced, "mesh " + std::to_string(mesh) + " is not, or no longer, built", ""}}};
  if (const auto it = values_.find(key); it != values_.end()) return {{from, request, it->second, {}}};
  // Whoever gave up waiting does not say so: of its requests the oldest make room.
  const auto mine = [&](const Waiting& w) { return w.from == from; };
  if (static_cast<std::size_t>(std::count_if(waiting_.begin(), waiting_.end(), mine)) >= kWaitingPerRankMax)
    waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(), mine));
  waiting_.push_back({from, request, key});
  return {};
}

} // namespace troupe::protocol
