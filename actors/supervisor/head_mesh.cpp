// The ranks as one mesh: hosts protocol::Mesh and the store in which its members find each other.
#include <caf/all.hpp>

#include "actors/runtime/names.h"
#include "actors/supervisor/head_internal.h"
#include "base/log.h"

namespace troupe::actors {

namespace pr = protocol::rollout;
using protocol::Role;

void Head::mesh_event(const protocol::mesh::Event& event) {
  if (!ended_) perform_all(mesh_.handle(event, head_now()), kMeshTimer);
}

void Head::perform(const protocol::mesh::Build& e) {
  send_answers(mesh_store_.open(e.mesh, mesh_.ranks()));
  std::string folder;
  if (e.order.from_commit) {
    const auto it = commits_.find(*e.order.from_commit);
    folder = it != commits_.end() ? it->second.first : commit_folder(*e.order.from_commit);
  }
  for (const protocol::WorkerId& rank : e.members) send(rank, BuildMesh{e.order.version, folder, e.order.held, e.mesh, mesh_.ranks(), mesh_address(rank)});
}

// Every rank is on this machine.
std::string Head::mesh_address(const protocol::WorkerId&) const { return "127.0.0.1"; }

void Head::perform(const protocol::mesh::Whole& e) {
  const PolicyVersion version = e.order.version;
  if (std::exchange(rolled_back_, false)) {
    protocol::LedgerSnapshot ledger = start_.ledger;
    if (e.order.from_commit)
      if (const auto it = commits_.find(*e.order.from_commit); it != commits_.end()) ledger = it->second.second;
    rollout_event(pr::RolledBack{version, ledger});
  } else {
    rollout_event(pr::TrainerReady{version});
  }
  observer_.event("mesh_ready", "rank/0", {{"version", to_string(version)}, {"ranks", mesh_.ranks()}, {"parameters", parameters_}});
  run_event(protocol::run::MeshReady{version});
}

void Head::perform(const protocol::mesh::Abort& e) {
  for (const protocol::WorkerId& rank : e.members) send(rank, AbortMesh{e.mesh, e.reason}); // the reason comes before the store's refusal
  send_answers(mesh_store_.open(std::nullopt, mesh_.ranks()));
}

void Head::perform(const protocol::mesh::Lost& e) { run_event(protocol::run::RankLost{e.who, e.cause}); }

void Head::send_answers(const std::vector<protocol::MeshStore::Answer>& answers) {
  for (const auto& a : answers) send(a.to, StoreAnswer{a.request, !a.error.has_value(), a.value, a.error.value_or(Error{})});
}

caf::message_handler Head::mesh_handlers() {
  return {
      [this](const MeshReady& m) {
        parameters_ = m.parameters;
        mesh_event(protocol::mesh::Ready{m.mesh, m.rank});
      },
      [this](const MeshBroken& m) {
        observer_.event("mesh_broken", "rank/" + std::to_string(m.rank), {{"error", m.error.to_string()}});
        mesh_event(protocol::mesh::Broken{m.mesh, m.rank, m.error.message});
      },
      [this](const StoreSet& m) { send_answers(mesh_store_.set(m.mesh, m.key, m.value)); },
      [this](const StoreGet& m) { send_answers(mesh_store_.get(m.mesh, {Role::kRank, m.rank, m.incarnation}, m.request, m.key)); },
  };
}

// The ranks that a lost head left behind go on when all of them are there and hold the same.
void Head::rank_adopted(const Hello& hello, const protocol::WorkerId& id) {
  early_.insert(early_.begin(), id);
  if (id.index >= mesh_.ranks()) return; // the run had more of them: it leaves
  if (!hello.holds) return begin_cold(hello.name + " has lost its state: a step failed while no supervisor was there");
  adopted_ranks_[id.index] = hello.version;
  if (adopted_ranks_.size() < mesh_.ranks()) return;
  for (const auto& [index, version] : adopted_ranks_)
    if (version != hello.version)
      return begin_cold("rank/" + std::to_string(index) + " holds " + to_string(version) + ", " + hello.name + " " + to_string(hello.version));
  begin_warm(hello.version);
}

} // namespace troupe::actors
