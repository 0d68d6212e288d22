// quickstart: what a user gets from `./troupe run configs/quickstart.toml`, the binary already built.
#include <cmath>

#include "bench/live_run.h"
#include "bench/peer.h"
#include "bench/registry.h"
#include "bench/rl_figures.h"

namespace troupe::bench {
namespace {

using nlohmann::json;

constexpr int kPromptsPerStep = 16, kSamplesPerPrompt = 8, kMaxNewTokens = 6;  // of configs/quickstart.toml
constexpr int kPeerSteps = 60;

struct Measured {
  double wall_s = 0, first_step_s = 0;
  json summary;
  RlStage rl;
  std::optional<json> peer;
};

Result<Measured> run_once(Context& context, bool with_peer) {
  Measured m;
  TROUPE_TRY(auto run, LiveRun::start("configs/quickstart.toml", {}));
  TROUPE_TRY_STATUS(run.wait_until("the first training step", std::chrono::minutes(2),
                                   [&] { return !run.records("metrics.jsonl").empty(); }));
  m.first_step_s = run.seconds();
  TROUPE_TRY_STATUS(run.finish(std::chrono::minutes(20)));
  m.wall_s = run.seconds();
  TROUPE_TRY(m.summary, run.summary());
  m.rl = rl_stage(run.records("metrics.jsonl"));
  if (m.rl.steps == 0) return fail(ErrorCode::kCorrupt, "the quickstart left no rl step in metrics.jsonl");
  if (!with_peer) return m;
  RlWork work{
      (run.folder() / "export").string(), kPromptsPerStep, kSamplesPerPrompt, kMaxNewTokens, 4e-4, kPeerSteps, 0, 0};
  m.peer = run_peer(context, "grpo_trl.py", trl_arguments(work));
  return m;
}

}  // namespace

Status run_quickstart(Context& context) {
  std::vector<double> wall, first, memory, before, after, delivered, trained;
  json last;
  std::optional<json> peer;
  const int repeats = context.repeats(1);
  for (int i = 0; i < repeats; ++i) {
    TROUPE_TRY(const Measured m, run_once(context, i + 1 == repeats));
    last = m.summary;
    peer = m.peer;
    wall.push_back(m.wall_s);
    first.push_back(m.first_step_s);
    memory.push_back(last["rss_peak_mib"].get<double>());
    before.push_back(last["eval"]["before"].get<double>());
    after.push_back(last["eval"]["after"].get<double>());
    delivered.push_back(last["completions"].get<double>() / m.rl.seconds);
    trained.push_back(static_cast<double>(m.rl.steps) * kPromptsPerStep * kSamplesPerPrompt / m.rl.seconds);
  }
  const json common = {{"config", "configs/quickstart.toml"}, {"dtype", "float32"}, {"repeats", repeats}};
  const auto add = [&](const char* name, double value, const char* unit, std::optional<Peer> of_peer = {},
                       json more = json::object()) {
    Figure figure{std::string("quickstart.") + name, value, unit, std::move(of_peer), common};
    figure.conditions.update(more);
    context.add(std::move(figure));
  };
  add("wall", median(wall), "s", {}, {{"from", "start of troupe run"}});
  add("first_step", median(first), "s", {}, {{"from", "start of troupe run"}});
  add("rss_peak", median(memory), "MiB", {}, {{"of", "PSS of all processes"}});
  add("accuracy_before", median(before), "of 1", {}, {{"problems", 400}});
  add("accuracy_after", median(after), "of 1", {}, {{"problems", 400}});
  const json shape = {{"model", "128 x 3 layers"}, {"batch", "16 x 8"}};
  add("trained", median(trained), "completions/s", peer_of(peer, "completions_per_s"), shape);
  add("delivered", median(delivered), "completions/s", {}, {{"of", "zero-signal groups included"}});
  const json& diff = last["logprob_diff_max"];
  add("logprob_diff_max", diff.is_number() ? diff.get<double>() : std::nan(""), "nats", {},
      {{"tokens", last["logprob_tokens_compared"]}});
  return {};
}

}  // namespace troupe::bench
