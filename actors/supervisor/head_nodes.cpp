// The machines of a run: the head's own, and those that join and leave.
#include <caf/all.hpp>
#include <signal.h>
#include <unistd.h>

#include <charconv>

#include "actors/runtime/names.h"
#include "actors/runtime/network.h"
#include "actors/supervisor/head_internal.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

namespace troupe::actors {

namespace pm = protocol::membership;
using nlohmann::json;
using protocol::NodeId;

namespace {

constexpr NodeId kOwnMachine{1};

std::optional<NodeId> node_id(std::string_view name) {
  NodeId id;
  if (!name.starts_with("node")) return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), id.number);
  if (error != std::errc{} || end != name.data() + name.size() || id.number == 0) return std::nullopt;
  return id;
}

} // namespace

// Its number, and what its agent is to know. It counts once the agent says hello.
NodeAdmitted Head::admit(const JoinRun& request) {
  if (ended_ || !begun_) return {false, begun_ ? "the run has ended" : "the run is about to begin; try again", {}, {}, {}};
  if (nodes_.size() + admitted_.size() >= options_.membership.nodes_max)
    return {false, "the run has its " + std::to_string(options_.membership.nodes_max) + " machines (control.nodes_max)", {}, {}, {}};
  const auto tokenizer = read_file(options_.folder / "tokenizer" / "tokenizer.json");
  if (!tokenizer) return {false, tokenizer.error().to_string(), {}, {}, {}};
  const NodeId id{++last_node_};
  admitted_.insert(id);
  observer_.event("node_admitted", to_string(id), {{"host", request.host}, {"address", request.address}, {"pid", request.pid}});
  return {true, {}, to_string(id), encode_frame(frame_), hex64(hash64(*tokenizer))};
}

void Head::node_joined(const NodeHello& hello, const caf::actor& agent) {
  const auto id = node_id(hello.node);
  const bool adopted = start_.warm && !begun_ && hello.term < start_.term; // it belonged to the lost head
  const bool local = id == kOwnMachine;
  const bool ours = local && hello.pid == agent_.pid; // not the word of a dead one, that its end has overtaken
  const bool known = ours || adopted || (id && admitted_.erase(*id) > 0);
  if (!id || nodes_.contains(*id) || !known || (hello.term != start_.term && !adopted)) {
    self_->send(agent, FencedOff{hello.node + " (term " + std::to_string(hello.term) + ") is not, or no longer, part of this run (term " +
                                 std::to_string(start_.term) + ")"});
    return;
  }
  last_node_ = std::max(last_node_, id->number);
  nodes_[*id] = {agent, local, hello.pid, hello.host, hello.address, false, {}};
  self_->monitor(agent);
  observer_.event(adopted ? "node_adopted" : "node_joined", to_string(*id), {{"pid", hello.pid}, {"host", hello.host}, {"address", hello.address}});
  if (!local) observer_.say("troupe: " + to_string(*id) + " (" + hello.host + ", " + hello.address + ") has joined; `troupe scale rollout=N` uses it");
  member_event(pm::NodeJoined{*id, !local});
  if (adopted) adopt_children(hello, *id);
}

void Head::link_down(const caf::actor_addr& who) {
  for (const auto& [id, node] : nodes_) {
    if (node.agent.address() != who) continue;
    if (!node.local) return node_lost(id, "the connection to it is gone");
    const pid_t pid = agent_.pid;
    if (pid > 0) ::kill(pid, SIGKILL); // dead already, or frozen: its workers must not live on beside their replacements
    return agent_gone(pid, "the connection to it is gone");
  }
  for (const auto& [name, worker] : workers_)
    if (worker.actor.address() == who) return member_event(pm::LinkDown{worker.id});
}

// Its workers are replaced elsewhere. Should it come back, it is told that it is no longer counted on.
void Head::node_lost(NodeId node, const std::string& how) {
  observer_.event("node_lost", to_string(node), {{"how", how}});
  observer_.say("troupe: " + to_string(node) + " is gone: " + how);
  nodes_.erase(node);
  member_event(pm::NodeLost{node, how});
}

// What is wrong with it, or nothing.
std::string Head::drain_node(const std::string& name) {
  const auto id = node_id(name);
  const auto entry = id ? nodes_.find(*id) : nodes_.end();
  if (entry == nodes_.end()) return "there is no node \"" + name + "\" in this run";
  if (entry->second.local) return name + " is the head's own machine; `troupe stop` ends the run";
  if (std::exchange(entry->second.leaving, true)) return {};
  observer_.event("node_draining", name, {});
  observer_.say("troupe: " + name + " leaves; its workers finish or hand over first");
  member_event(pm::NodeDraining{*id});
  node_emptied(*id);
  return {};
}

// A leaving machine without workers is let go.
void Head::node_emptied(NodeId node) {
  const auto entry = nodes_.find(node);
  if (entry == nodes_.end() || !entry->second.leaving) return;
  for (const auto& [id, member] : membership_.members())
    if (member.node == node) return;
  self_->send(entry->second.agent, StopNode{"it was drained"});
  observer_.event("node_left", to_string(node), {});
  observer_.say("troupe: " + to_string(node) + " has left");
  nodes_.erase(entry);
  member_event(pm::NodeLost{node, "it has left"});
}

void Head::node_report(const NodeReport& report) {
  for (const WorkerReading& reading : report.workers)
    if (const auto id = worker_id(reading.name, reading.incarnation)) member_event(pm::Worked{*id, reading.moves, reading.busy});
  const auto id = node_id(report.node);
  if (const auto node = id ? nodes_.find(*id) : nodes_.end(); node != nodes_.end()) node->second.listeners = report.listeners;
}

json Head::nodes_json() const {
  json list = json::array();
  for (const auto& [id, node] : nodes_) {
    std::size_t workers = 0;
    for (const auto& [worker, member] : membership_.members()) workers += member.node == id ? 1 : 0;
    list.push_back({{"name", to_string(id)},
                    {"host", node.host},
                    {"address", node.address},
                    {"pid", node.pid},
                    {"state", node.leaving ? "draining" : "serving"},
                    {"workers", workers}});
  }
  return list;
}

// Who listens on TCP: ours as they are now, those of the nodes as their agents last saw them.
json Head::listeners_json() const {
  json list = json::array();
  for (const Listener& l : listeners_of({static_cast<std::int32_t>(::getpid())}))
    list.push_back({{"node", to_string(kOwnMachine)}, {"process", "supervisor"}, {"address", l.address}, {"port", l.port}, {"use", "control (mutual TLS)"}});
  for (const auto& [id, node] : nodes_)
    for (const NodeListener& l : node.listeners)
      list.push_back({{"node", to_string(id)},
                      {"process", l.process},
                      {"address", l.address},
                      {"port", l.port},
                      {"use", "weights, gradients, checkpoints (neither authenticated nor encrypted)"}});
  return list;
}

} // namespace troupe::actors
