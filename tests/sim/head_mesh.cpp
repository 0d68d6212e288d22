// The ranks as one mesh: hosts protocol::Mesh and the store in which its members find each other.
#include <memory>
#include <utility>

#include "sim/head.h"

namespace troupe::sim {

using namespace protocol;

void Head::hear(WorkerId, const mesh::Event& event) {
  receive([this, event] { feed(mesh_, event); });
}

void Head::store_set(std::uint64_t mesh, const std::string& key, const std::string& value) {
  receive([this, mesh, key, value] { send_answers(mesh_store_.set(mesh, key, value)); });
}

void Head::store_get(WorkerId from, std::uint64_t mesh, std::uint64_t request, const std::string& key) {
  receive([this, from, mesh, request, key] { send_answers(mesh_store_.get(mesh, from, request, key)); });
}

void Head::send_answers(const std::vector<MeshStore::Answer>& answers) {
  for (const MeshStore::Answer& answer : answers)
    order_reliably<RankProcess>(30 + answer.to.index, process<RankProcess>(answer.to), [answer](RankProcess& r) { r.answered(answer); });
}

void Head::perform(const mesh::Build& e) {
  require(e.mesh > machine_.meshes, "no mesh is built twice");
  machine_.meshes = e.mesh;
  require(e.members.size() == scenario_.ranks, "a mesh has every rank");
  send_answers(mesh_store_.open(e.mesh, scenario_.ranks));
  Trained state = e.order.from_commit ? disk_.commits.at(*e.order.from_commit).trained : Trained{};
  state.version = e.order.version;
  for (const WorkerId& id : e.members) {
    require(joined_.contains(id), "a mesh is built by ranks that are there");
    const auto fail = [this, id] { machine_.end_process(id, "the head takes it to hold what it does not hold"); };
    order_reliably<RankProcess>(40 + id.index, process<RankProcess>(id),
                                [e, state, fail, ranks = scenario_.ranks](RankProcess& r) { r.build(e, ranks, state, fail); });
  }
}

void Head::perform(const mesh::Whole& e) {
  for (const auto& rank : ranks()) {
    require(rank->connected_in() == e.mesh, "a mesh is whole when every rank is connected in it");
    require(rank->trained().version == e.order.version, "the ranks of a new mesh hold its version");
  }
  world_.log("the mesh is whole");
  const PolicyVersion version = e.order.version;
  if (std::exchange(rolled_back_, false)) {
    oldest_.clear();
    prefixes_.clear();
    const LedgerSnapshot ledger = e.order.from_commit ? disk_.commits.at(*e.order.from_commit).ledger : start_ledger_;
    feed(rollouts_, rollout::Event{rollout::RolledBack{version, ledger}});
  } else {
    feed(rollouts_, rollout::Event{rollout::TrainerReady{version}});
  }
  feed(run_, run::Event{run::MeshReady{version}});
}

void Head::perform(const mesh::Abort& e) {
  for (const WorkerId& id : e.members)
    order_reliably<RankProcess>(40 + id.index, process<RankProcess>(id), [e](RankProcess& r) { r.abort(e.mesh, e.reason); });
  send_answers(mesh_store_.open(std::nullopt, scenario_.ranks));
}

void Head::perform(const mesh::Lost& e) { feed(run_, run::Event{run::RankLost{e.who, e.cause}}); }

// The ranks that a lost head left behind go on when all of them are there and hold the same.
void Head::rank_adopted(WorkerId id, std::optional<PolicyVersion> holds) {
  early_.insert(early_.begin(), {id, holds});
  if (!holds) return begin_cold(to_string(id) + " has lost its state");
  adopted_ranks_[id.index] = *holds;
  if (adopted_ranks_.size() < scenario_.ranks) return;
  for (const auto& [index, version] : adopted_ranks_)
    if (version != *holds) return begin_cold("the ranks do not hold the same");
  begin_warm(*holds);
}

} // namespace troupe::sim
