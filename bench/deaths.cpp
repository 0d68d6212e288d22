// deaths: what a run needs until it goes on after the death of its rank or of its supervisor, or when a worker freezes.
#include <signal.h>

#include <optional>
#include <thread>

#include "bench/live_run.h"
#include "bench/registry.h"

namespace troupe::bench {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr Duration kDeadline = std::chrono::minutes(2), kPause = std::chrono::milliseconds(10);
constexpr Duration kBetween = std::chrono::milliseconds(2500);  // longer than the restart window of the config

Result<pid_t> pid_of(const LiveRun& run, const std::string& name) {
  const json actor = run.actor(name);
  if (!actor.is_object() || !actor["pid"].is_number()) return fail(ErrorCode::kUnavailable, name + " is not there");
  return actor["pid"].get<pid_t>();
}

Status steps_on(LiveRun& run, const std::string& after, std::uint64_t steps) {
  const std::uint64_t before = run.rl_step();
  return run.wait_until("steps after " + after, kDeadline, [&] { return run.rl_step() >= before + steps; }, kPause);
}

// From the kill until the first optimizer step of the next epoch is done.
Result<double> rank_seconds(LiveRun& run) {
  TROUPE_TRY(const pid_t pid, pid_of(run, "rank/0"));
  const json before = run.actor("rank/0")["version"];
  const auto start = Clock::now();
  ::kill(pid, SIGKILL);
  std::optional<std::uint64_t> resumed_at;
  TROUPE_TRY_STATUS(run.wait_until(
      "a step of the next epoch", kDeadline,
      [&] {
        const json rank = run.actor("rank/0");
        if (!rank.is_object() || rank["version"]["epoch"] <= before["epoch"]) return false;
        const std::uint64_t step = rank["version"]["step"];
        if (!resumed_at) resumed_at = step;
        return step > *resumed_at;
      },
      kPause));
  return seconds(Clock::now() - start);
}

// From the kill, `--resume` at once, until the next optimizer step; the rank must be the same process.
Result<double> supervisor_seconds(LiveRun& run) {
  TROUPE_TRY(const pid_t rank, pid_of(run, "rank/0"));
  const std::uint64_t before = run.rl_step();
  const auto start = Clock::now();
  TROUPE_TRY_STATUS(run.replace_supervisor());
  TROUPE_TRY_STATUS(run.wait_until("a step under the next supervisor", kDeadline, [&] { return run.rl_step() > before + 1; }, kPause));
  const double took = seconds(Clock::now() - start);
  TROUPE_TRY(const pid_t now, pid_of(run, "rank/0"));
  if (now != rank) return fail(ErrorCode::kUnavailable, "the rank was restarted although it was alive");
  return took;
}

struct Frozen {
  double out_of_routing = 0, replaced = 0;
};

Result<Frozen> frozen_seconds(LiveRun& run, const std::string& victim) {
  TROUPE_TRY(const pid_t pid, pid_of(run, victim));
  const std::uint64_t restarts = run.actor(victim)["restarts"];
  const auto start = Clock::now();
  ::kill(pid, SIGSTOP);
  Frozen took;
  TROUPE_TRY_STATUS(run.wait_until(
      victim + " to be suspected", kDeadline,
      [&] {
        const json now = run.actor(victim);
        return now.is_object() && now["state"] != "serving";
      },
      kPause));
  took.out_of_routing = seconds(Clock::now() - start);
  TROUPE_TRY_STATUS(run.wait_until(
      "the replacement of " + victim, kDeadline,
      [&] {
        const json now = run.actor(victim);
        return now.is_object() && now["state"] == "serving" && now["restarts"] > restarts;
      },
      kPause));
  took.replaced = seconds(Clock::now() - start);
  return took;
}

}  // namespace

Status run_deaths(Context& context) {
  TROUPE_TRY(auto run, LiveRun::start("bench/configs/recovery.toml", {"checkpoint.every=20"}));
  TROUPE_TRY_STATUS(run.wait_until("the rl stage", kDeadline, [&] { return run.rl_step() >= 30; }));
  const int repeats = context.repeats(3);
  std::vector<double> rank, supervisor, suspected, replaced;
  for (int i = 0; i < repeats; ++i) {
    TROUPE_TRY(const Frozen frozen, frozen_seconds(run, "rollout/" + std::to_string(i % 2)));
    suspected.push_back(frozen.out_of_routing);
    replaced.push_back(frozen.replaced);
    std::this_thread::sleep_for(kBetween);
    TROUPE_TRY(const double of_rank, rank_seconds(run));
    rank.push_back(of_rank);
    TROUPE_TRY_STATUS(steps_on(run, "the death of the rank", 30));
    std::this_thread::sleep_for(kBetween);
    TROUPE_TRY(const double of_supervisor, supervisor_seconds(run));
    supervisor.push_back(of_supervisor);
    TROUPE_TRY_STATUS(steps_on(run, "the death of the supervisor", 30));
  }
  TROUPE_TRY(const json status, run.ask({{"command", "status"}}));
  TROUPE_TRY_STATUS(run.ask({{"command", "stop"}}).map([](const json&) {}));
  TROUPE_TRY_STATUS(run.finish(kDeadline));

  const json& prompts = status["status"]["prompts"];
  const auto count = [&](const char* key) { return prompts[key].get<double>(); };
  const auto add = [&](const char* name, const std::vector<double>& took, const char* to) {
    context.add({std::string("deaths.") + name, median(took), "s", {},
                 {{"to", to}, {"repeats", repeats}, {"worst", percentile(took, 1)}, {"model", "quickstart, 128 x 3 layers"}, {"batch", "16 x 8"}, {"dtype", "float32"}}});
  };
  add("rank_killed", rank, "first step of the next epoch, from the newest checkpoint");
  add("supervisor_killed", supervisor, "next step, same rank process");
  add("worker_frozen_suspected", suspected, "out of routing");
  add("worker_frozen_replaced", replaced, "its replacement serves");
  context.add({"deaths.prompts_lost", count("dispatched") - count("delivered") - count("cancelled") - count("in_flight"), "prompts", {},
               {{"dispatched", prompts["dispatched"]}}});
  return {};
}

}  // namespace troupe::bench
