#include <caf/all.hpp>

#include "actors/runtime/names.h"
#include "actors/supervisor/control_log.h"
#include "actors/supervisor/head_internal.h"
#include "actors/supervisor/roster.h"
#include "base/log.h"

namespace troupe::actors {

namespace pm = protocol::membership;
namespace pr = protocol::rollout;
using protocol::Role;

void Head::member_event(const pm::Event& event) {
  if (ended_) return;
  perform_all(membership_.handle(event, head_now()), kMembershipTimer);
}

void Head::worker_joined(const Hello& hello, const caf::actor& worker) {
  const auto id = worker_id(hello.name, hello.incarnation);
  const auto member = id ? membership_.members().find(*id) : membership_.members().end();
  if (start_.warm && !begun_ && member == membership_.members().end() && hello.term < start_.term) return before_node_.push_back({hello, worker});
  const bool adopted = start_.warm && hello.term < start_.term && id && workers_.count(hello.name) == 0;
  if (!id || (hello.term != start_.term && !adopted) || member == membership_.members().end()) {
    self_->send(worker, FencedOff{hello.name + " (incarnation " + std::to_string(hello.incarnation) + ", term " + std::to_string(hello.term) +
                                  ") is not, or no longer, part of this run"});
    return;
  }
  workers_[hello.name] = {*id, worker, hello.pid, {}};
  self_->monitor(worker);
  observer_.event(adopted ? "worker_adopted" : "worker_joined", hello.name, {{"incarnation", hello.incarnation}, {"pid", hello.pid}});
  if (adopted) return adopt_worker(hello, *id);
  register_worker(*id);
}

void Head::heard(const std::string& name, std::uint32_t incarnation) {
  if (const auto id = worker_id(name, incarnation)) member_event(pm::Heard{*id});
}

void Head::perform(const pm::StartWorker& e) {
  const auto node = nodes_.find(e.node);
  if (node == nodes_.end()) return;
  const RoleRow& row = role_row(e.worker.role);
  WorkerFrame frame = frame_;
  frame.name = worker_name(e.worker);
  frame.role = std::string(to_string(e.worker.role));
  frame.index = static_cast<std::int32_t>(e.worker.index);
  frame.incarnation = e.worker.incarnation;
  frame.epoch = run_.epoch();
  frame.node = to_string(e.node);
  if (lost_.erase(frame.name) > 0) ++restarts_;
  observer_.event("worker_start", frame.name, {{"incarnation", frame.incarnation}, {"node", frame.node}});
  self_->send(node->second.agent, StartWorker{frame.name, frame.incarnation, encode_frame(frame), row.torch, row.weights, row.threads(options_)});
}

void Head::perform(const pm::DrainWorker& e) {
  if (e.worker.role != Role::kRollout) return member_event(pm::Empty{e.worker}); // nothing is handed over
  rollout_event(pr::WorkerDraining{e.worker});
  const auto left = std::max<Duration>(e.deadline - head_now(), std::chrono::milliseconds(1));
  send(e.worker, DrainRollout{static_cast<std::uint64_t>(left / std::chrono::milliseconds(1))});
}

void Head::perform(const pm::StopWorker& e) {
  send(e.worker, StopWorker{"scaled down"});
}

void Head::perform(const pm::KillWorker& e) {
  observer_.event("worker_kill", worker_name(e.worker), {{"incarnation", e.worker.incarnation}, {"reason", e.reason}});
  if (const auto node = nodes_.find(e.node); node != nodes_.end()) self_->send(node->second.agent, KillWorker{worker_name(e.worker), e.worker.incarnation});
}

void Head::perform(const pm::Suspected& e) {
  observer_.event("worker_suspected", worker_name(e.worker), {});
  if (e.worker.role == Role::kRollout) rollout_event(pr::WorkerSuspected{e.worker});
}

void Head::perform(const pm::Cleared& e) {
  if (e.worker.role == Role::kRollout) rollout_event(pr::WorkerCleared{e.worker});
}

void Head::perform(const pm::Gone& e) {
  const std::string name = worker_name(e.worker);
  observer_.event("worker_gone", name, {{"incarnation", e.worker.incarnation}, {"reason", e.reason}, {"unexpected", e.unexpected}});
  if (e.unexpected) {
    lost_.insert(name);
    observer_.say("troupe: " + name + " is gone: " + e.reason);
  }
  if (entry(e.worker) != nullptr) workers_.erase(name);
  pids_.erase({name, e.worker.incarnation});
  gauges_.erase(name);
  tell_gone(e);
  std::vector<protocol::NodeId> leaving;
  for (const auto& [node, entry] : nodes_)
    if (entry.leaving) leaving.push_back(node);
  for (const protocol::NodeId node : leaving) node_emptied(node);
}

void Head::tell_gone(const pm::Gone& e) {
  const std::string name = worker_name(e.worker);
  switch (e.worker.role) {
    case Role::kRollout:
      router_.worker_gone(name);
      send_rank(LeaseEnded{name, e.worker.incarnation, 0, true});
      return rollout_event(pr::WorkerGone{e.worker, e.reason});
    case Role::kEnvironment: return router_.runner_gone(name);
    case Role::kCheckpointWriter:
      prepared_layout_.clear();
      return commit_event(protocol::checkpoint::WriterLost{name + " is gone: " + e.reason});
    case Role::kRank: {
      // What the rank said of itself is the cause; a plain kill has none, and two of them are not the same poison.
      const auto words = rank_failures_.extract(name);
      return mesh_event(protocol::mesh::Left{e.worker, e.reason, words ? words.mapped() : std::string()});
    }
  }
}

void Head::perform(const pm::ScaleRefused& e) { log_warning(e.error.to_string()); }

void Head::perform(const pm::GiveUp& e) { run_event(protocol::run::Broken{e.reason}); }

} // namespace troupe::actors
