// recovery: rollout workers killed and scaled while they work; what it takes until all is as before, and whether
// anything was lost.
#include <signal.h>

#include <thread>

#include "bench/live_run.h"
#include "bench/registry.h"

namespace troupe::bench {
namespace {

using nlohmann::json;

constexpr Duration kDeadline = std::chrono::minutes(2), kPause = std::chrono::milliseconds(10);
constexpr Duration kBetweenKills = std::chrono::milliseconds(2500);  // longer than the restart window of the config

std::size_t serving_rollouts(const LiveRun& run, bool any_state) {
  const auto answer = run.ask({{"command", "actors"}});
  if (!answer) return 0;
  std::size_t count = 0;
  for (const json& a : (*answer)["result"]["actors"])
    count += a["role"] == "rollout" && (a["state"] == "serving" || (any_state && a["state"] != "dead"));
  return count;
}

// From the kill until the replacement has delivered its first sample: later than its first token by at most the five tokens of a sum. It holds at
// least the version that the trainer had at the kill.
Result<double> kill_seconds(LiveRun& run, const std::string& victim) {
  const json before = run.actor(victim), rank = run.actor("rank/0");
  if (!before.is_object() || !before["pid"].is_number() || !rank.is_object())
    return fail(ErrorCode::kUnavailable, victim + " is not there");
  const auto start = std::chrono::steady_clock::now();
  ::kill(before["pid"].get<pid_t>(), SIGKILL);
  TROUPE_TRY_STATUS(run.wait_until(
      "the replacement of " + victim, kDeadline,
      [&] {
        const json now = run.actor(victim);
        return now.is_object() && now["state"] == "serving" && now["restarts"] > before["restarts"] &&
               now["version"].is_object() && now["version"]["step"] >= rank["version"]["step"] && now["samples"] > 0;
      },
      kPause));
  return seconds(std::chrono::steady_clock::now() - start);
}

Result<double> scale_seconds(LiveRun& run, std::size_t count) {
  const auto start = std::chrono::steady_clock::now();
  TROUPE_TRY_STATUS(run.ask({{"command", "scale"}, {"role", "rollout"}, {"count", count}}).map([](const json&) {}));
  TROUPE_TRY_STATUS(run.wait_until(
      "scale rollout=" + std::to_string(count), kDeadline,
      [&] { return serving_rollouts(run, false) == count && serving_rollouts(run, true) == count; }, kPause));
  return seconds(std::chrono::steady_clock::now() - start);
}

// Steps of the rl stage that metrics.jsonl lacks between its first and its last.
std::uint64_t skipped_steps(const std::vector<json>& metrics) {
  std::uint64_t skipped = 0, last = 0;
  for (const json& line : metrics) {
    if (line.value("stage", "") != "rl" || line.contains("eval/accuracy")) continue;
    const auto step = line["step"].get<std::uint64_t>();
    if (last > 0) skipped += step > last ? step - last - 1 : 1;
    last = step;
  }
  return skipped;
}

}  // namespace

Status run_recovery(Context& context) {
  TROUPE_TRY(auto run, LiveRun::start("bench/configs/recovery.toml", {}));
  TROUPE_TRY_STATUS(run.wait_until("the rl stage", kDeadline, [&] { return run.rl_step() >= 20; }));
  const int repeats = context.repeats(3);
  std::vector<double> took;
  for (int i = 0; i < repeats; ++i) {
    TROUPE_TRY(const double s, kill_seconds(run, "rollout/" + std::to_string(i % 2)));
    took.push_back(s);
    std::this_thread::sleep_for(kBetweenKills);
  }
  TROUPE_TRY(const double up, scale_seconds(run, 4));
  const std::uint64_t at_four = run.rl_step();
  TROUPE_TRY_STATUS(run.wait_until(
      "steps with four workers", kDeadline, [&] { return run.rl_step() >= at_four + 20; }, kPause));
  TROUPE_TRY(const double down, scale_seconds(run, 1));
  const std::uint64_t at_one = run.rl_step();
  TROUPE_TRY_STATUS(run.wait_until(
      "steps with one worker", kDeadline, [&] { return run.rl_step() >= at_one + 20; }, kPause));
  TROUPE_TRY(const json status, run.ask({{"command", "status"}}));
  TROUPE_TRY_STATUS(run.ask({{"command", "stop"}}).map([](const json&) {}));
  TROUPE_TRY_STATUS(run.finish(kDeadline));

  TROUPE_TRY(const json summary, run.summary());
  const json& prompts = status["status"]["prompts"];
  const auto count = [&](const char* key) { return prompts[key].get<double>(); };
  const double lost = count("dispatched") - count("delivered") - count("cancelled") - count("in_flight");
  const json load = {{"model", "quickstart, 128 x 3 layers"}, {"batch", "16 x 8"}, {"dtype", "float32"}};
  const auto add = [&](const char* name, double value, const char* unit, json more) {
    more.update(load);
    context.add({std::string("recovery.") + name, value, unit, {}, more});
  };
  add("rollout_killed", median(took), "s",
      {{"to", "first sample of the replacement, at the version of the kill or newer"},
       {"repeats", repeats},
       {"worst", percentile(took, 1)},
       {"restart_pause_ms", 200}});
  add("scale_2_to_4", up, "s", {{"to", "four serve"}});
  add("scale_4_to_1", down, "s", {{"to", "three drained and left"}});
  add("steps_skipped", static_cast<double>(skipped_steps(run.records("metrics.jsonl"))), "steps",
      {{"steps", summary["steps"]}});
  add("prompts_lost", lost, "prompts",
      {{"dispatched", prompts["dispatched"]}, {"in_flight", prompts["in_flight"]}, {"restarts", summary["restarts"]}});
  return {};
}

}  // namespace troupe::bench
