// grpo: the asynchronous loop against TRL, from the same weights, with the same batch, learning rate and load.
#include "bench/live_run.h"
#include "bench/peer.h"
#include "bench/registry.h"
#include "bench/rl_figures.h"

namespace troupe::bench {
namespace {

using nlohmann::json;

constexpr double kFrom = 0.3, kTo = 0.75;
constexpr int kPromptsPerStep = 32, kSamplesPerPrompt = 8;  // of bench/configs/grpo.toml
constexpr int kPeerStepsMax = 2000, kEvalEvery = 25;
constexpr Duration kDeadline = std::chrono::minutes(30);

// The time from kFrom to kTo on a curve, and where it began.
std::optional<double> climb(const std::vector<RlStage::Point>& curve) {
  const auto begin = seconds_to(curve, kFrom), end = seconds_to(curve, kTo);
  return begin && end ? std::optional(*end - *begin) : std::nullopt;
}

// Lets the run go on until it is right often enough, or done.
Status climb_and_stop(LiveRun& run) {
  const auto there = [&] {
    const auto curve = rl_stage(run.records("metrics.jsonl")).accuracy;
    return std::filesystem::exists(run.folder() / "summary.json") || (!curve.empty() && curve.back().accuracy >= kTo);
  };
  TROUPE_TRY_STATUS(run.wait_until("accuracy 0.75", kDeadline, there, std::chrono::milliseconds(200)));
  if (!std::filesystem::exists(run.folder() / "summary.json"))
    TROUPE_TRY_STATUS(run.ask({{"command", "stop"}}).map([](const json&) {}));
  return run.finish(kDeadline);
}

std::vector<RlStage::Point> curve_of(const std::optional<json>& peer) {
  std::vector<RlStage::Point> curve;
  if (!peer) return curve;
  for (const json& point : peer->value("curve", json::array()))
    curve.push_back({point.at(0).get<double>(), point.at(1).get<double>()});
  return curve;
}

}  // namespace

Status run_grpo(Context& context) {
  const int repeats = context.repeats(1);
  std::vector<double> rates, climbs;
  double accuracy_before = 0, accuracy_after = 0;
  std::optional<json> peer;
  for (int i = 0; i < repeats; ++i) {
    TROUPE_TRY(auto run, LiveRun::start("bench/configs/grpo.toml", {"run.seed=" + std::to_string(i + 1)}));
    TROUPE_TRY_STATUS(climb_and_stop(run));
    const RlStage rl = rl_stage(run.records("metrics.jsonl"));
    if (rl.steps == 0 || rl.accuracy.empty())
      return fail(ErrorCode::kCorrupt, "the run left no rl step in metrics.jsonl");
    rates.push_back(static_cast<double>(rl.steps) * kPromptsPerStep * kSamplesPerPrompt / rl.seconds);
    if (const auto s = climb(rl.accuracy)) climbs.push_back(*s);
    accuracy_before = rl.accuracy.front().accuracy;
    accuracy_after = rl.accuracy.back().accuracy;
    if (i + 1 < repeats) continue;
    const RlWork work{(run.folder() / "export").string(),
                      kPromptsPerStep,
                      kSamplesPerPrompt,
                      4,
                      5e-5,
                      kPeerStepsMax,
                      kTo,
                      kEvalEvery};
    peer = run_peer(context, "grpo_trl.py", trl_arguments(work));
  }
  const json common = {{"model", "qwen3 4 layers x 128, 0.8 M"},
                       {"dtype", "float32"},
                       {"batch", "32 x 8"},
                       {"lr", 5e-5},
                       {"staleness", 1},
                       {"processes", "rank and 2 rollout workers of 1 thread"},
                       {"repeats", repeats}};
  context.add({"grpo.completions", median(rates), "completions/s", peer_of(peer, "completions_per_s"), common});
  json conditions = common;
  conditions.update(
      {{"accuracy_before", accuracy_before}, {"accuracy_after", accuracy_after}, {"evaluations", "in the time"}});
  const auto peer_curve = curve_of(peer);
  std::optional<Peer> peer_climb;
  if (const auto s = climb(peer_curve)) peer_climb = Peer{"TRL GRPOTrainer", *s};
  if (!peer_curve.empty()) conditions["peer_accuracy_before"] = peer_curve.front().accuracy;
  if (climbs.empty())
    context.say("grpo: accuracy 0.75 was not reached; it went from " + std::to_string(accuracy_before) + " to " +
                std::to_string(accuracy_after));
  else
    context.add({"grpo.accuracy_0.3_to_0.75", median(climbs), "s", peer_climb, conditions});
  return {};
}

}  // namespace troupe::bench
