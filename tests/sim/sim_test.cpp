// The protocol cores wired to simulated processes over bad links, by seed. A failing seed prints itself and the last
// lines of its story; it stays here as a regression test.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "sim/head.h"

namespace troupe::sim {
namespace {

using namespace protocol;
using namespace std::chrono_literals;

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

/// What goes wrong until the world heals.
void schedule_faults(World& world, const std::shared_ptr<Head>& head, Duration until) {
  world.faults.loss = world.chance(0.7) ? 0.03 : 0;
  world.faults.duplication = world.chance(0.7) ? 0.05 : 0;
  world.faults.long_delay = world.chance(0.7) ? 0.05 : 0;
  const auto sometimes = [&](double chance, Duration every, void (Head::*fault)()) {
    if (!world.chance(chance)) return;
    for (Duration t = world.millis(100, 5000); t < until;
         t += world.millis(200, 2 * static_cast<std::uint64_t>(every / 1ms))) {
      world.after(t, [head, fault] { ((*head).*fault)(); });
    }
  };
  sometimes(0.6, 5s, &Head::crash_worker);
  sometimes(0.5, 6s, &Head::freeze_worker);
  sometimes(0.4, 12s, &Head::crash_rank);
  sometimes(0.3, 8s, &Head::crash_writer);
  if (!world.chance(0.5)) return;
  for (Duration t = 1s; t < until; t += world.millis(500, 8000)) {
    world.after(t, [head, count = static_cast<std::uint32_t>(world.between(0, 6))] { head->scale(count); });
  }
}

/// What the cores had to deal with, summed over the lives of a run.
struct Trouble {
  std::uint64_t events = 0, duplicates = 0, late = 0, retries = 0, stale = 0, attempts = 0, filtered = 0,
                rolled_back = 0;
  std::uint64_t fenced = 0, stalls = 0, evaluated = 0, epochs = 0, resumed = 0;

  void add(const Head& head) {
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
  }
};

struct Outcome {
  std::string story;
  std::string violation;
  Trouble trouble;
};

/// One run: faults for 30 s, then none. The head itself may be killed or asked to stop, and the run resumed.
Outcome simulate(std::uint64_t seed) {
  World world(seed);
  Disk disk;
  Trouble trouble;
  std::shared_ptr<Head> head;
  std::vector<std::shared_ptr<Head>> graves;  // actions under way still refer to them
  try {
    const Scenario scenario = scenario_of(world);
    const TimePoint heal = world.now() + 30s;
    const TimePoint deadline = heal + 600s;
    bool healed = false;
    head = std::make_shared<Head>(world, disk, scenario);
    schedule_faults(world, head, 30s);
    head->start();
    TimePoint interruption = TimePoint::max();
    if (world.chance(0.4)) interruption = world.now() + world.millis(1000, 20000);
    const bool by_request = world.chance(0.5);
    while (true) {
      if (!world.step()) throw Violation("nothing is under way and the run has not ended");
      if (!healed && world.now() >= heal) {
        healed = true;
        world.faults = {};
        world.log("healed");
        head->unfreeze_all();
        head->scale(scenario.workers);
      }
      require(world.now() < deadline, "the run ends after the world has healed: " + head->progress());
      const bool interrupt = world.now() >= interruption;
      if (interrupt && !head->ended()) {
        world.log(by_request ? "stop" : "the head dies");
        interruption = TimePoint::max();
        if (by_request) head->stop();
        else head->kill_everything();
      }
      const bool dead = interrupt && !by_request;
      if (!head->ended() && !dead) continue;
      if (head->ended() && head->ended()->exit == RunExit::kDone) break;
      if (head->ended())
        require(head->ended()->exit == RunExit::kStopped || !healed, "the run fails: " + head->ended()->reason);
      world.log("resume");
      trouble.add(*head);
      ++trouble.resumed;
      graves.push_back(head);
      head = std::make_shared<Head>(world, disk, scenario);
      head->start();
    }
    // Every prompt below the frontier was trained once or left for a reason.
    const LedgerCounters c = head->rollouts().stats().prompts;
    const Trained& trained = head->trained();
    require(c.in_flight == 0, "nothing is in flight at the end");
    require(c.delivered == trained.prompts.size(), "delivered is what was trained");
    require(c.delivered == scenario.stages[1].steps * scenario.plan.prompts_per_step, "every step had its batch");
    require(trained.version.step == scenario.stages[0].steps + scenario.stages[1].steps, "every step was made");
  } catch (const Violation& violation) {
    return {world.history(), violation.what(), trouble};
  }
  trouble.add(*head);
  trouble.events = world.events;
  return {"", "", trouble};
}

TEST(Sim, EverySeedKeepsTheInvariantsAndEnds) {
  Trouble sum;
  for (std::uint64_t seed = 1; seed <= TROUPE_SIM_SEEDS; ++seed) {
    const Outcome outcome = simulate(seed);
    ASSERT_TRUE(outcome.violation.empty()) << "seed " << seed << ": " << outcome.violation << "\n" << outcome.story;
    const Trouble& t = outcome.trouble;
    sum.events += t.events;
    sum.duplicates += t.duplicates;
    sum.late += t.late;
    sum.retries += t.retries;
    sum.stale += t.stale;
    sum.attempts += t.attempts;
    sum.filtered += t.filtered;
    sum.rolled_back += t.rolled_back;
    sum.fenced += t.fenced;
    sum.stalls += t.stalls;
    sum.evaluated += t.evaluated;
    sum.epochs += t.epochs;
    sum.resumed += t.resumed;
  }
  // The seeds must reach the corners, or the invariants above say little.
  for (const auto& [what, count] :
       std::vector<std::pair<const char*, std::uint64_t>>{{"events", sum.events},
                                                          {"duplicates", sum.duplicates},
                                                          {"late results", sum.late},
                                                          {"retries", sum.retries},
                                                          {"stale groups", sum.stale},
                                                          {"attempts used up", sum.attempts},
                                                          {"filtered", sum.filtered},
                                                          {"rolled back", sum.rolled_back},
                                                          {"fenced", sum.fenced},
                                                          {"stalls", sum.stalls},
                                                          {"evaluated", sum.evaluated},
                                                          {"epochs", sum.epochs},
                                                          {"resumes", sum.resumed}}) {
    std::printf("%s %llu, ", what, static_cast<unsigned long long>(count));
    EXPECT_GT(count, 0u) << what << " never happened";
  }
  std::printf("in %d seeds\n", TROUPE_SIM_SEEDS);
}

TEST(Sim, ASeedIsAWholeStory) {
  for (const std::uint64_t seed : {3, 17}) EXPECT_EQ(simulate(seed).trouble.events, simulate(seed).trouble.events);
}

} // namespace
} // namespace troupe::sim
