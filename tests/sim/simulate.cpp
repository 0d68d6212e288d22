#include "sim/simulate.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace troupe::sim {

using namespace protocol;
using namespace std::chrono_literals;

namespace {

constexpr Duration kHeadWait = 8s;         // of the agent
constexpr Duration kEndsWithin = 600s;     // after the world has healed
constexpr int kMinimiseRuns = 600;

Scenario scenario_of(World& world) {
  Scenario s;
  s.plan.prompts_per_step = static_cast<std::uint32_t>(world.between(1, 4));
  s.plan.samples_per_prompt = static_cast<std::uint32_t>(world.between(1, 4));
  s.plan.staleness = static_cast<std::uint32_t>(world.between(0, 3));
  s.plan.window_fraction = static_cast<double>(world.between(0, 10)) / 10;
  s.plan.drop_zero_signal = s.plan.samples_per_prompt > 1;
  s.plan.empty_batches_max = 1000;
  if (world.chance(0.2)) s.plan.max_age = s.plan.staleness;
  s.workers = static_cast<std::uint32_t>(world.between(1, 4));
  s.spares = s.workers % 2;
  s.ranks = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, world.between(0, 3)));
  s.sample_failures = world.chance(0.5) ? 0.05 : 0;
  StageSpec sft;
  sft.kind = StageKind::kSft;
  sft.steps = world.between(0, 3);
  StageSpec rl;
  rl.steps = world.between(3, 10);
  rl.checkpoint_every = world.between(0, 4);
  rl.evaluate_every = world.between(0, 4);
  rl.evaluate_before = world.chance(0.5);
  rl.evaluate_after = world.chance(0.5);
  StageSpec eval;
  eval.kind = StageKind::kEval;
  StageSpec exported;
  exported.kind = StageKind::kExport;
  s.stages = {sft, rl, eval, exported};
  return s;
}

class Run {
 public:
  ~Run() {
    for (const auto& head : heads_) head->drop_inbox();
    if (head_) head_->drop_inbox();
    if (machine_.agent)
      for (const auto& [id, child] : machine_.agent->children) child->drop_inbox();
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  Run(std::uint64_t seed, Mode mode, const Faults& faults, const std::function<void(const Trouble&)>& also)
      : world_(seed), mode_(mode), also_(also), machine_{world_, {}, std::make_shared<Agent>(), {}, {}, 0}, scenario_(scenario_of(world_)) {
    machine_.agent->alive = false;  // the first head starts it
    machine_.ever_started.push_back(machine_.agent);
    for (const Fault& fault : faults) {
      switch (fault.kind) {
        case FaultKind::kLoseMessage: world_.message_faults.emplace(fault.message, MessageFault::kLost); break;
        case FaultKind::kDoubleMessage: world_.message_faults.emplace(fault.message, MessageFault::kTwice); break;
        case FaultKind::kDelayMessage: world_.message_faults.emplace(fault.message, MessageFault::kLate); break;
        default:
          world_.after(fault.at, [this, fault] {
            if (!healed_) strike(fault);
          });
      }
    }
  }

  Outcome play() {
    Outcome outcome;
    try {
      head_ = make_head();
      require(head_->start(), "the first head starts");
      world_.after(mode_ == Mode::kHeal ? kFaultsLast : kSafetyLasts, [this] { heal(); });
      while (!over()) {
        if (!world_.step()) throw Violation("nothing is under way and the run has not ended");
        if (also_) also_(trouble_);
        require(world_.now() - begin_ < kFaultsLast + kEndsWithin, "the run ends after the world has healed: " + head_->progress());
      }
      if (done_) check_end();
    } catch (const Violation& violation) {
      outcome.violation = violation.what();
      outcome.story = world_.history();
    }
    bury(*head_);
    trouble_.events = world_.events;
    trouble_.messages = world_.messages;
    trouble_.dropped_records = machine_.disk.dropped_records;
    trouble_.commits = machine_.disk.commits.size();
    outcome.trouble = trouble_;
    outcome.took = world_.now() - begin_;
    return outcome;
  }

 private:
  std::shared_ptr<Head> make_head() {
    auto head = std::make_shared<Head>(machine_, scenario_);
    heads_.push_back(head);
    ++trouble_.heads;
    return head;
  }

  bool over() {
    if (mode_ == Mode::kSafety && healed_) return true;
    if (!head_->ended() || resuming_) return false;
    const run::Ended& ended = *head_->ended();
    if (ended.exit == RunExit::kDone) return done_ = true;
    require(ended.exit == RunExit::kStopped || !healed_, "the run fails: " + ended.reason);
    machine_.end_agent();
    resume_after(100ms);
    return false;
  }

  void heal() {
    healed_ = true;
    world_.log("healed");
    world_.message_faults.clear();
    machine_.disk.full_until = {};
    machine_.agent->thaw();
    for (const auto& [id, child] : machine_.agent->children) child->thaw();
    want_workers();
  }

  void want_workers() {
    if (!head_->scale(scenario_.workers)) world_.after(1s, [this] { want_workers(); });
  }

  // ---- faults

  void strike(const Fault& fault) {
    trouble_.faults[static_cast<std::size_t>(fault.kind)] += strikes(fault) ? 1 : 0;
  }

  bool strikes(const Fault& fault) {
    switch (fault.kind) {
      case FaultKind::kCrashWorker: return crash(Role::kRollout, fault.pick);
      case FaultKind::kCrashRank: return crash(Role::kRank, fault.pick);
      case FaultKind::kCrashWriter: return crash(Role::kCheckpointWriter, fault.pick);
      case FaultKind::kFreezeWorker: return freeze(Role::kRollout, fault);
      case FaultKind::kFreezeRank: return freeze(Role::kRank, fault);
      case FaultKind::kFreezeWriter: return freeze(Role::kCheckpointWriter, fault);
      case FaultKind::kCrashAgent: return crash_agent();
      case FaultKind::kCrashHead: return crash_head(fault.lasts);
      case FaultKind::kFreezeHead: return head_->freeze(fault.lasts), head_->alive();
      case FaultKind::kClockOfHead: return head_->jump_clock(fault.lasts), head_->alive();
      case FaultKind::kFreezeAgent: return freeze_agent(fault.lasts);
      case FaultKind::kClockBackOfHead: return head_->jump_clock(-fault.lasts), head_->alive();
      case FaultKind::kClockOfRank: return jump_clock_of_rank(fault.lasts);
      case FaultKind::kClockBackOfRank: return jump_clock_of_rank(-fault.lasts);
      case FaultKind::kFullDisk:
        world_.log("the disk is full");
        machine_.disk.full_until = std::max(machine_.disk.full_until, world_.now() + fault.lasts);
        return true;
      case FaultKind::kScale: return head_->scale(static_cast<std::uint32_t>(fault.pick % 7));
      case FaultKind::kStop: return head_->stop(), head_->alive();
      default: return false;
    }
  }

  std::shared_ptr<Process> one_of(Role role, std::uint64_t pick) {
    std::vector<std::shared_ptr<Process>> living;
    for (const auto& [id, child] : machine_.agent->children)
      if (id.role == role && child->alive) living.push_back(child);
    return living.empty() ? nullptr : living[pick % living.size()];
  }

  bool crash(Role role, std::uint64_t pick) {
    const auto process = one_of(role, pick);
    if (process) machine_.end_process(process->id, "killed by signal 9");
    return process != nullptr;
  }

  bool freeze(Role role, const Fault& fault) {
    const auto process = one_of(role, fault.pick);
    if (process) process->freeze(fault.lasts);
    return process != nullptr;
  }

  bool jump_clock_of_rank(Duration by) {
    const auto rank = std::dynamic_pointer_cast<RankProcess>(one_of(Role::kRank, 0));
    if (rank) rank->jump_clock(by);
    return rank != nullptr;
  }

  // Its children go on. A head that hears nothing of it for long gives it up.
  bool freeze_agent(Duration time) {
    const auto agent = machine_.agent;
    if (!agent->alive || agent->frozen) return false;
    world_.log("freeze the agent");
    agent->frozen = true;
    const auto number = ++freezes_;
    world_.after(time, [this, agent, number] {
      if (number == freezes_) agent->thaw();
    });
    if (time < kLinkPatience) return true;
    world_.after(kLinkPatience, [this, agent, number, head = head_] {
      if (agent->frozen && number == freezes_ && head->line() == agent->line) head->agent_gone(agent, "the connection to it is gone");
    });
    return true;
  }

  bool crash_agent() {
    if (!machine_.agent->alive) return false;
    world_.log("the agent dies");
    machine_.end_agent();
    world_.after(world_.millis(1, 20), [head = head_, agent = machine_.agent] {
      if (head->line() == agent->line) head->agent_gone(agent, "killed by signal 9");
    });
    return true;
  }

  bool crash_head(Duration away) {
    if (!head_->alive() || head_->ended()) return false;
    world_.log("the head dies");
    head_->die();
    const auto line = head_->line();
    const auto agent = machine_.agent;
    for (const auto& [id, child] : agent->children)
      world_.after(world_.millis(1, 60), [child = child, line] { child->deliver([child, line] { child->lose_head(line); }); });
    if (agent->line == line) agent->line.reset();
    world_.after(kHeadWait, [this, agent] {
      agent->deliver([this, agent] {
        if (agent->line || agent != machine_.agent) return;
        world_.log("the agent has waited long enough");
        machine_.end_agent();
      });
    });
    resume_after(away);
    return true;
  }

  void resume_after(Duration away) {
    resuming_ = true;
    world_.after(away, [this] {
      resuming_ = false;
      world_.log("resume");
      bury(*head_);
      head_->die();
      head_ = make_head();
      const auto head = head_;
      const bool warm = machine_.agent->alive;
      if (!head->start()) {
        head->die();
        return resume_after(1s);  // somebody makes room and tries again
      }
      if (warm) introduce(head);
    });
  }

  // Who is left reads head.json and says hello.
  void introduce(const std::shared_ptr<Head>& head) {
    const auto agent = machine_.agent;
    world_.after(world_.millis(10, 200), [head, agent] {
      agent->deliver([head, agent] {
        if (!head->alive()) return;
        agent->line = head->line();
        head->agent_hello(agent);
      });
    });
    for (const auto& [id, child] : agent->children)
      world_.after(world_.millis(10, 200), [child = child, head] { child->deliver([child, head] { child->find_head(head->line()); }); });
  }

  void bury(const Head& head) {
    if (&head == last_buried_) return;
    last_buried_ = &head;
    trouble_.add(head);
  }

  // Every prompt below the frontier was trained once or left for a reason.
  void check_end() {
    ++trouble_.done;
    const LedgerCounters c = head_->rollouts().stats().prompts;
    const Trained& trained = head_->trained();
    require(c.in_flight == 0, "nothing is in flight at the end");
    require(c.delivered == trained.prompts.size(), "delivered is what was trained");
    require(c.delivered == scenario_.stages[1].steps * scenario_.plan.prompts_per_step, "every step had its batch");
    require(trained.version.step == scenario_.stages[0].steps + scenario_.stages[1].steps, "every step was made");
  }

  World world_;
  Mode mode_;
  const std::function<void(const Trouble&)>& also_;
  Machine machine_;
  Scenario scenario_;
  const TimePoint begin_ = world_.now();
  std::shared_ptr<Head> head_;
  std::vector<std::shared_ptr<Head>> heads_;  // actions under way still refer to the dead
  const Head* last_buried_ = nullptr;
  std::uint64_t freezes_ = 0;  // of agents
  bool healed_ = false, resuming_ = false, done_ = false;
  Trouble trouble_;
};

}  // namespace

void Trouble::add(const Head& head) {
  const RolloutStats s = head.rollouts().stats();
  const auto by = [&](CancelReason reason) { return s.prompts.cancelled_by[static_cast<std::size_t>(reason)]; };
  duplicates += s.prompts.duplicates;
  late += s.prompts.late;
  retries += s.prompts.retries;
  stale += by(CancelReason::kStale);
  attempts += by(CancelReason::kAttempts);
  filtered += by(CancelReason::kZeroSignal);
  rolled_back += by(CancelReason::kRollback);
  fenced += s.fenced;
  stalls += s.stalls;
  evaluated += s.evaluation_delivered;
  epochs += head.epoch();
  warm += head.warm() ? 1 : 0;
  ahead += head.step_ahead() ? 1 : 0;
  cold += head.warm() ? 0 : 1;
}

Trouble& Trouble::operator+=(const Trouble& other) {
  constexpr std::size_t kNumbers = sizeof(Trouble) / sizeof(std::uint64_t);
  static_assert(sizeof(Trouble) == kNumbers * sizeof(std::uint64_t), "nothing but counters");
  auto* mine = reinterpret_cast<std::uint64_t*>(this);
  const auto* theirs = reinterpret_cast<const std::uint64_t*>(&other);
  for (std::size_t i = 0; i < kNumbers; ++i) mine[i] += theirs[i];
  return *this;
}

Outcome simulate(std::uint64_t seed, Mode mode, const Faults& faults, const std::function<void(const Trouble&)>& also) {
  return Run(seed, mode, faults, also).play();
}

Faults faults_of(std::uint64_t seed, Mode mode) { return faults_of(seed, mode == Mode::kHeal ? kFaultsLast : kSafetyLasts); }

std::string explain(std::uint64_t seed, Mode mode, const Faults& faults, const std::function<void(const Trouble&)>& also) {
  const Outcome first = simulate(seed, mode, faults, also);
  Faults reached;  // what came after the end had no part in it
  for (const Fault& fault : faults)
    if (fault.at <= first.took && fault.message <= first.trouble.messages) reached.push_back(fault);
  const auto fails = [&](const Faults& some) { return !simulate(seed, mode, some, also).violation.empty(); };
  const Faults least = minimise(std::move(reached), fails, kMinimiseRuns);
  const Outcome outcome = simulate(seed, mode, least, also);
  std::string text = "seed " + std::to_string(seed) + (mode == Mode::kHeal ? " (heal)" : " (safety)") + ": " + outcome.violation + "\n" +
                     std::to_string(least.size()) + " of " + std::to_string(faults.size()) + " faults are enough:\n";
  for (const Fault& fault : least) text += "  " + to_string(fault) + "\n";
  return text + outcome.story;
}

} // namespace troupe::sim
