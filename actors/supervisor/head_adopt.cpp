// The beginning of a head, with new processes or with those that a lost head left behind, and the agent of its own machine.
#include <caf/all.hpp>
#include <signal.h>

#include "actors/runtime/names.h"
#include "actors/runtime/process.h"
#include "actors/supervisor/control_log.h"
#include "actors/supervisor/head_internal.h"
#include "actors/supervisor/roster.h"
#include "base/log.h"

namespace troupe::actors {

namespace pm = protocol::membership;
namespace pr = protocol::rollout;
using nlohmann::json;
using protocol::Role;

// From the newest commit (or the start) in a new epoch. Processes that were adopted go on in it.
void Head::begin_cold(const std::string& why_not_warm) {
  if (std::exchange(begun_, true)) return;
  if (!why_not_warm.empty()) {
    observer_.say("troupe: the processes of the lost supervisor cannot go on (" + why_not_warm + "); back to the newest checkpoint");
    observer_.event("not_adopted", "", {{"reason", why_not_warm}});
  }
  if (start_.epoch > 0)
    if (const auto logged = log_.append_or_fail(protocol::control::Epoch{start_.epoch}); !logged)
      return run_event(protocol::run::Broken{"the run cannot begin: " + logged.error().to_string()});
  if (start_.warm) restore_tally(start_.warm->tally);
  run_event(protocol::run::Start{start_.position, start_.epoch});
  if (ended_) return; // every stage was done already: nobody is needed
  const bool own_agent = nodes_.contains(protocol::NodeId{1});
  if (!own_agent) {
    if (start_.warm && agent_.pid > 0) ::kill(agent_.pid, SIGKILL); // frozen, or cut off: its workers die with it
    start_agent();
  }
  want_workers();
  for (const protocol::WorkerId& id : std::exchange(early_, {})) register_worker(id);
  for (auto& [hello, worker] : std::exchange(before_node_, {})) worker_joined(hello, worker); // refused
}

// Where the lost head was, in its epoch.
void Head::begin_warm(PolicyVersion rank) {
  const auto start = protocol::warm_start(*start_.warm, rank);
  if (!start) return begin_cold("the rank holds " + to_string(rank) + ", the log says " + to_string(start_.warm->position.version));
  begun_ = true;
  const std::optional<protocol::RunPosition> committed = start_.warm_commit;
  if (committed) commits_[committed->version] = {commit_folder(committed->version), start_.warm_ledger};
  start_.epoch = rank.epoch;
  start_.ledger = {}; // of the run's start: what a rollback without a commit returns to
  commit_ = protocol::CheckpointCommit(options_.commit, rank.epoch, 1);
  commit_event(protocol::checkpoint::Found{start_.commits});
  rollout_ = protocol::RolloutDirector(options_.rollout, start->ledger);
  restore_tally(start_.warm->tally);
  observer_.say("troupe: went on at " + to_string(rank) + " with the processes of the lost supervisor");
  observer_.event("adopted", "", {{"version", to_string(rank)}, {"step_ahead", start->step_ahead}, {"workers", early_.size()}});
  if (rank.step > 0 && observer_.last_step() != rank.step) { // asked before anything else: its line is written before that of a later step
    late_ = {start_.warm->position.stage, 0, rank};
    send_rank(TrainStep{{rank.epoch, rank.step - 1}, 0});
  }
  run_event(protocol::run::Adopt{start->position, committed});
  want_workers();
  for (const protocol::WorkerId& id : std::exchange(early_, {})) register_worker(id);
  for (auto& [hello, worker] : std::exchange(before_node_, {})) worker_joined(hello, worker); // refused: their machine comes too late
}

void Head::want_workers() {
  for (const RoleRow& row : roster()) {
    const auto scaled = start_.wanted.find(row.role);
    const bool was_scaled = scaled != start_.wanted.end();
    const pm::SetWanted wanted{row.role, was_scaled ? scaled->second.count : row.count(options_), was_scaled ? scaled->second.generation : 1};
    if (row.role == Role::kRollout) serve_with(wanted.count);
    member_event(wanted);
  }
}

void Head::serve_with(std::uint32_t rollouts) {
  if (options_.membership.spares > 0) rollout_event(pr::ServeWith{rollouts});
}

// The workers of an agent that belonged to the lost head.
void Head::adopt_children(const NodeHello& hello, protocol::NodeId node) {
  std::uint32_t ranks = 0;
  for (const NodeChild& child : hello.children) {
    const auto id = worker_id(child.name, child.incarnation);
    if (!id) continue;
    if (child.pid == 0) {
      member_event(pm::Known{*id});
      continue;
    }
    pids_[{child.name, child.incarnation}] = child.pid;
    member_event(pm::Adopt{*id, node});
    ranks += id->role == Role::kRank && id->index < mesh_.ranks() ? 1 : 0;
  }
  for (auto& [early, worker] : std::exchange(before_node_, {})) worker_joined(early, worker);
  if (node != protocol::NodeId{1} || ranks == mesh_.ranks()) return;
  begin_cold(mesh_.ranks() == 1 ? "the rank has died" : "of " + std::to_string(mesh_.ranks()) + " ranks " + std::to_string(ranks) + " are left");
}

void Head::adopt_worker(const Hello& hello, const protocol::WorkerId& id) {
  workers_[hello.name].holds = hello.holds;
  workers_[hello.name].version = hello.version;
  if (begun_) return register_worker(id);
  if (id.role != Role::kRank) return early_.push_back(id);
  rank_adopted(hello, id);
}

// Tells the cores of a worker that is there.
void Head::register_worker(const protocol::WorkerId& id) {
  WorkerEntry* worker = entry(id);
  if (worker == nullptr) return; // gone meanwhile
  member_event(pm::Registered{id});
  switch (id.role) {
    case Role::kRollout: return rollout_event(pr::WorkerJoined{id, worker->holds ? std::optional(worker->version) : std::nullopt});
    case Role::kEnvironment: router_.runner_joined(worker_name(id)); break;
    case Role::kCheckpointWriter:
      prepared_layout_.clear();
      commit_event(protocol::checkpoint::WriterJoined{});
      break;
    case Role::kRank: mesh_event(protocol::mesh::Joined{id}); break;
  }
  member_event(pm::Serving{id});
}

void Head::start_agent() {
  const auto started = agent_.start();
  if (!started) return run_event(protocol::run::Broken{"no node agent could be started: " + started.error().to_string()});
  agent_.pid = *started;
  log_.append(protocol::control::Agent{static_cast<std::int32_t>(*started), process_start_ticks(*started)});
}

// Its workers have died with it: replaced when the next one is there.
void Head::agent_gone(pid_t pid, const std::string& how) {
  pid_t running = pid;
  if (ended_ || pid <= 0 || !agent_.pid.compare_exchange_strong(running, -1)) return; // heard of it before
  observer_.event("agent_gone", "node1", {{"how", how}});
  observer_.say("troupe: the node agent of this machine is gone: " + how);
  if (nodes_.erase(protocol::NodeId{1}) > 0) member_event(pm::NodeLost{protocol::NodeId{1}, how});
  const auto verdict = agent_restarts_.on_failure({"the node agent", how, head_now()});
  if (const auto* up = std::get_if<protocol::Escalate>(&verdict)) return run_event(protocol::run::Broken{"the node agent of this machine: " + up->reason});
  arm(kAgentTimer, std::get<protocol::RestartAt>(verdict).at);
}

void Head::log_tally() {
  json tally{{"tokens", tokens_},     {"completions", completions_}, {"restarts", restarts_},
             {"age_max", age_max_},   {"diff_max", diff_max_},       {"tokens_compared", tokens_compared_}};
  if (eval_before_) tally["eval_before"] = *eval_before_;
  if (eval_after_) tally["eval_after"] = *eval_after_;
  log_.append(protocol::control::Tally{tally.dump()});
}

void Head::restore_tally(const std::string& text) {
  const json tally = json::parse(text, nullptr, false);
  if (!tally.is_object()) return;
  tokens_ = tally.value("tokens", tokens_);
  completions_ = tally.value("completions", completions_);
  restarts_ = tally.value("restarts", restarts_);
  age_max_ = tally.value("age_max", age_max_);
  diff_max_ = tally.value("diff_max", diff_max_);
  tokens_compared_ = tally.value("tokens_compared", tokens_compared_);
  if (tally.contains("eval_before")) eval_before_ = tally.value("eval_before", 0.0);
  if (tally.contains("eval_after")) eval_after_ = eval_latest_ = tally.value("eval_after", 0.0);
}

} // namespace troupe::actors
