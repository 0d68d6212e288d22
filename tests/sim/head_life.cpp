// How a head begins, with new processes or with those of a lost one, what happens to it, and what must hold after every event.
#include <algorithm>
#include <utility>

#include "sim/head.h"

namespace troupe::sim {

using namespace protocol;
using namespace std::chrono_literals;

namespace {

constexpr NodeId kNode{1};
constexpr Duration kAdoptWait = 5s;
constexpr Duration kMeshPatience = 4s;

RolloutOptions rollout_options() {
  RolloutOptions o;
  o.pull_deadline = 8s;
  o.command_resend = 1s;
  o.sample_silence = 5s;
  o.worker_samples_max = 16;
  return o;
}

MembershipOptions membership_options(const Scenario& scenario) {
  MembershipOptions o;
  o.spares = scenario.spares;
  o.drain_deadline = 2s;
  o.drain_grace = 1s;
  o.join_deadline = 5s;
  o.restart.restarts_max = 1000;  // the scenarios kill more than a healthy run would bear
  o.restart.backoff_max = 1s;
  return o;
}

CheckpointCommitOptions checkpoint_options() {
  CheckpointCommitOptions o;
  o.prepare_deadline = 3s;
  o.copy_deadline = 3s;
  o.write_deadline = 3s;
  o.commit_deadline = 3s;
  return o;
}

RunOptions run_options() {
  RunOptions o;
  o.mesh_deadline = 20s;
  o.step_deadline = 20s;
  o.stop_deadline = 60s;
  o.rollbacks_max = 1000;
  return o;
}

}  // namespace

void Machine::end_process(WorkerId id, const std::string& reason) {
  const auto child = agent->children.find(id);
  if (child == agent->children.end()) return;
  if (child->second->alive) world.log(to_string(id) + " ends: " + reason);
  child->second->end();
  agent->deliver([this, id, reason, seen = agent] {
    if (!seen->line) return;
    world.send_reliably(1, [line = seen->line, id, reason] {
      if (line->head) line->head->hear(id, membership::Event{membership::Exited{id, reason}});
    });
  });
}

void Machine::end_agent() {
  agent->alive = false;
  agent->inbox.clear();
  for (const auto& [id, child] : agent->children) child->end(), child->drop_inbox();
}

Head::Head(Machine& machine, const Scenario& scenario)
    : machine_(machine),
      world_(machine.world),
      disk_(machine.disk),
      scenario_(scenario),
      start_epoch_(disk_.log.term == 0 ? 0 : disk_.log.epoch + 1),
      start_wanted_(disk_.log.wanted),
      run_(run_options(), scenario.stages),
      rollouts_(rollout_options(), {}),
      membership_(membership_options(scenario)),
      checkpoints_(checkpoint_options(), 0, 1),
      mesh_(scenario.ranks, 0, kMeshPatience) {
  line_->head = this;
}

Head::~Head() { line_->head = nullptr; }

// As supervisor.cpp does before the first actor.
bool Head::start() {
  if (machine_.agent->alive && !disk_.log.ended) warm_ = disk_.log;
  if (warm_) counted_on_ = machine_.agent;
  if (disk_.newest) {
    const Commit& commit = disk_.commits.at(*disk_.newest);
    start_position_ = commit.position;
    start_ledger_ = commit.ledger;
    start_epoch_ = std::max(start_epoch_, disk_.newest->epoch + 1);
  }
  for (auto it = disk_.commits.rbegin(); warm_ && it != disk_.commits.rend() && !warm_commit_; ++it)
    if (may_return_to(*warm_, it->first, it->second.ledger)) warm_commit_ = it->second.position;
  if (!log_record(control::Term{disk_.log.term + 1})) return false;
  mesh_ = Mesh(scenario_.ranks, static_cast<std::uint64_t>(disk_.log.term) << 32, kMeshPatience);
  checkpoints_ = CheckpointCommit(checkpoint_options(), start_epoch_, 1);
  rollouts_ = RolloutDirector(rollout_options(), start_ledger_);
  if (!warm_) return begin_cold(""), true;
  world_.after(kAdoptWait, [this] {
    receive([this] {
      if (!begun_) begin_cold("nobody it left behind answered");
    });
  });
  return true;
}

void Head::begin_cold(const std::string& why_not_warm) {
  if (std::exchange(begun_, true)) return;
  world_.log("begins cold" + (why_not_warm.empty() ? "" : ": " + why_not_warm));
  if (start_epoch_ > 0 && !log_record(control::Epoch{start_epoch_}))
    return feed(run_, run::Event{run::Broken{"the epoch cannot begin on a full disk"}});
  if (disk_.newest) disk_.acknowledged = disk_.newest;
  feed(run_, run::Event{run::Start{start_position_, start_epoch_}});
  if (ended_) return;
  if (!node_there_) start_agent();
  want_workers();
  for (const auto& [id, holds] : std::exchange(early_, {})) register_worker(id);
}

void Head::begin_warm(PolicyVersion rank) {
  const auto start = warm_start(*warm_, rank);
  if (!start) return begin_cold("the rank holds " + to_string(rank) + ", the log says " + to_string(warm_->position.version));
  world_.log("begins warm at " + to_string(rank) + (start->step_ahead ? ", a step ahead" : ""));
  begun_ = warm_begin_ = true;
  step_ahead_ = start->step_ahead;
  start_ledger_ = {};
  checkpoints_ = CheckpointCommit(checkpoint_options(), rank.epoch, 1);
  std::vector<PolicyVersion> found;
  for (const auto& [version, commit] : disk_.commits) found.push_back(version);
  feed(checkpoints_, checkpoint::Event{checkpoint::Found{found}});
  rollouts_ = RolloutDirector(rollout_options(), start->ledger);
  feed(run_, run::Event{run::Adopt{start->position, warm_commit_}});
  want_workers();
  for (const auto& [id, holds] : std::exchange(early_, {})) register_worker(id);
}

void Head::want_workers() {
  for (const Role role : {Role::kRank, Role::kRollout, Role::kCheckpointWriter}) {
    const auto scaled = start_wanted_.find(role);
    const std::uint32_t usual = role == Role::kRollout ? scenario_.workers : role == Role::kRank ? scenario_.ranks : 1;
    const bool was_scaled = scaled != start_wanted_.end();
    const membership::SetWanted wanted{role, was_scaled ? scaled->second.count : usual, was_scaled ? scaled->second.generation : 1};
    if (role == Role::kRollout) serve_with(wanted.count);
    feed(membership_, membership::Event{wanted});
  }
}

void Head::serve_with(std::uint32_t rollouts) {
  serve_with_ = rollouts;
  feed(rollouts_, rollout::Event{rollout::ServeWith{rollouts}});
}

void Head::start_agent() {
  machine_.end_agent();  // it may be frozen, or cut off: its workers die with it
  machine_.agent = std::make_shared<Agent>();
  machine_.agent->line = line_;
  machine_.ever_started.push_back(machine_.agent);
  counted_on_ = machine_.agent;
  world_.send_reliably(3, [line = line_, agent = machine_.agent, this] {
    if (line->head) agent_hello(agent);
  });
}

// Of a new agent, or of one that belonged to the lost head: with everybody it ever started.
void Head::agent_hello(const std::shared_ptr<Agent>& agent) {
  receive([this, agent] {
    if (agent != counted_on_) return;  // the word of a dead one, that its end has overtaken
    if (std::exchange(node_there_, true)) return;
    const bool adopted = warm_ && !begun_;
    feed(membership_, membership::Event{membership::NodeJoined{kNode}});
    if (!adopted) return;
    std::uint32_t ranks = 0;
    for (const auto& [id, child] : machine_.agent->children) {
      if (!child->alive) {
        feed(membership_, membership::Event{membership::Known{id}});
        continue;
      }
      feed(membership_, membership::Event{membership::Adopt{id, kNode}});
      ranks += id.role == Role::kRank ? 1 : 0;
    }
    for (const auto& [id, holds] : std::exchange(before_node_, {})) hello(id, holds, true);
    if (ranks < scenario_.ranks) begin_cold("a rank has died");
  });
}

void Head::hello(WorkerId from, std::optional<PolicyVersion> holds, bool adopted) {
  receive([this, from, holds, adopted] {
    if (adopted && !begun_ && !node_there_) return before_node_.emplace_back(from, holds), void();
    const auto child = machine_.agent->children.find(from);
    if (!membership_.members().contains(from) || child == machine_.agent->children.end()) {
      // Fenced off: it ends itself.
      if (child != machine_.agent->children.end()) machine_.end_process(from, "not, or no longer, part of this run");
      return;
    }
    joined_[from] = holds;
    if (begun_ || !adopted) return register_worker(from);
    if (from.role != Role::kRank) return early_.emplace_back(from, holds), void();
    rank_adopted(from, holds);
  });
}

void Head::register_worker(WorkerId id) {
  if (!membership_.members().contains(id) || !joined_.contains(id)) return;
  feed(membership_, membership::Event{membership::Registered{id}});
  if (id.role == Role::kRollout) return feed(rollouts_, rollout::Event{rollout::WorkerJoined{id, joined_[id]}});
  if (id.role == Role::kCheckpointWriter) feed(checkpoints_, checkpoint::Event{checkpoint::WriterJoined{}});
  if (id.role == Role::kRank) feed(mesh_, mesh::Event{mesh::Joined{id}});
  feed(membership_, membership::Event{membership::Serving{id}});
}

// ---- what happens to it

bool Head::scale(std::uint32_t count) {
  if (!alive_ || ended_ || frozen_ || !begun_) return false;
  world_.log("scale rollout=" + std::to_string(count));
  const membership::SetWanted wanted{Role::kRollout, count, membership_.generation(Role::kRollout) + 1};
  if (!log_record(control::Wanted{wanted.role, wanted.count, wanted.generation})) return false;
  serve_with(count);
  feed(membership_, membership::Event{wanted});
  return true;
}

void Head::stop() {
  receive([this] {
    if (begun_) feed(run_, run::Event{run::Stop{}});
  });
}

void Head::freeze(Duration time) {
  if (!alive_ || ended_ || frozen_) return;
  world_.log("freeze the head");
  frozen_ = true;
  const std::uint64_t number = ++freezes_;
  if (time >= kLinkPatience)
    world_.after(kLinkPatience, [this, number, agent = machine_.agent] {
      if (!frozen_ || number != freezes_ || !alive_) return;
      agent->line.reset();
      for (const auto& [id, child] : agent->children) child->deliver([child = child, line = line_] { child->lose_head(line); });
    });
  world_.after(time, [this, time, number] {
    if (number != freezes_ || !alive_) return;
    frozen_ = false;
    for (auto& action : std::exchange(inbox_, {})) receive(std::move(action));
    if (time >= kLinkPatience) agent_gone(counted_on_, "the connection to it is gone");
  });
}

void Head::jump_clock(Duration by) {
  world_.log(by < Duration{} ? "the head's clock goes back" : "the head's clock jumps");
  skew_ += by;
  // Deadlines are of this clock: what it is put back by comes on top of them.
  const Duration ahead = std::max(by, Duration{});
  for (auto& [id, since] : draining_since_) since += ahead;
  for (auto& [id, since] : killing_since_) since += ahead;
  saving_since_ += ahead;
  receive([this] { feed(membership_, Wake{}); });
  receive([this] { feed(rollouts_, Wake{}); });
  receive([this] { feed(checkpoints_, Wake{}); });
  receive([this] { feed(run_, Wake{}); });
  receive([this] { feed(mesh_, Wake{}); });
}

void Head::agent_gone(const std::shared_ptr<Agent>& agent, const std::string& how) {
  receive([this, agent, how] {
    if (!agent || counted_on_ != agent) return;  // heard of it before
    world_.log("the agent is gone: " + how);
    counted_on_.reset();
    machine_.end_agent();
    if (std::exchange(node_there_, false)) feed(membership_, membership::Event{membership::NodeLost{kNode, how}});
    world_.after(world_.millis(100, 1000), [this] {
      receive([this] {
        if (!node_there_) start_agent();
      });
    });
  });
}

void Head::die() {
  alive_ = false;
  line_->head = nullptr;
}

// ---- invariants

void Head::check_batch(const rollout::RequestTrainStep& e) {
  require(std::is_sorted(e.prompts.begin(), e.prompts.end()), "a batch is ordered by prompt");
  require(e.exhausted || e.prompts.size() == scenario_.plan.prompts_per_step, "a batch has P groups");
  for (const std::uint64_t prompt : e.prompts) {
    for (std::uint32_t i = 0; i < scenario_.plan.samples_per_prompt; ++i) {
      const auto it = oldest_.find({rollout::WorkKind::kTrain, 0, {prompt, i}});
      require(it != oldest_.end(),
              "sample " + std::to_string(prompt) + "/" + std::to_string(i) + " of a batch was delivered");
      require(it->second.epoch == e.from.epoch && it->second.step <= e.from.step,
              "no sample is newer than its trainer");
      require(e.from.step - it->second.step <= age_bound(scenario_.plan), "no sample is older than the age bound");
    }
  }
}

void Head::check() {
  if (ended_ || !begun_) return;
  const RolloutStats s = rollouts_.stats();
  const LedgerCounters& c = s.prompts;
  require(c.dispatched == c.delivered + c.cancelled() + c.in_flight, "dispatched = delivered + cancelled + in flight");
  require(s.evaluation_dispatched == s.evaluation_delivered + s.evaluation_cancelled + s.evaluation_in_flight,
          "evaluation work is conserved");
  require(c.in_flight + s.slots_held <= std::max(s.slots, c.in_flight), "at most B groups are open");
  require(s.workers_routable <= serve_with_, "spares get no work");
  const std::uint64_t stale = c.cancelled_by[static_cast<std::size_t>(CancelReason::kStale)];
  require(scenario_.plan.max_age || stale == 0, "by construction no group outlives the worst age");
  std::map<WorkerId, std::uint32_t> load;
  for (const auto& [prompt, group] : rollouts_.ledger().groups()) {
    for (const LedgerSample& sample : group.samples)
      load[sample.owner] += sample.state == SampleState::kAssigned ? 1 : 0;
  }
  if (s.evaluation_in_flight == 0) {
    for (const auto& [id, worker] : rollouts_.workers().all())
      require(worker.load == load[id], "the load of " + to_string(id) + " is what it was given");
  }
  // Every request ends. A head that was frozen finds its deadlines behind it: they count from there.
  if (frozen_) return;
  for (const auto& [id, since] : draining_since_) require(now() - since < 20s, "the drain of " + to_string(id) + " ends");
  for (const auto& [id, since] : killing_since_) require(now() - since < 30s, "the kill of " + to_string(id) + " is confirmed");
  if (saving_) require(now() - saving_since_ < 30s, "the save of " + to_string(saving_->position.version) + " ends");
}

std::string Head::progress() const {
  const RolloutStats s = rollouts_.stats();
  return "at stage " + std::to_string(run_.position().stage) + ", " + to_string(run_.position().version) + "; served " +
         (rollouts_.served() ? to_string(*rollouts_.served()) : "none") + "; groups waiting " +
         std::to_string(s.waiting) + ", running " + std::to_string(s.running) + ", complete " +
         std::to_string(s.complete) + ", in batch " + std::to_string(s.in_batch) + ", held " +
         std::to_string(s.slots_held) + "; routable " + std::to_string(s.workers_routable);
}

} // namespace troupe::sim
