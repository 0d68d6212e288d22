#include "cli/dry_run.h"

#include <nlohmann/json.hpp>

#include "cli/casting.h"
#include "observe/console.h"
#include "protocol/options.h"

namespace troupe::cli {
namespace {

using experiment::Experiment;
using nlohmann::json;
using protocol::StageKind;

// Parameters of a fresh decoder from its sizes; 0 when the model comes from files.
std::uint64_t parameters(const Experiment& e, int vocabulary) {
  if (!e.model.path.empty()) return 0;
  const model::DecoderSizes& s = e.model.sizes;
  const std::int64_t v = s.vocab_size > 0 ? s.vocab_size : vocabulary;
  const std::int64_t head = s.head_dim > 0 ? s.head_dim : s.width / s.heads;
  const std::int64_t attention = s.width * head * (s.heads + 2 * s.kv_heads) + s.heads * head * s.width + (e.model.family == "qwen3" ? 2 * head : 0);
  const std::int64_t layer = attention + 3 * s.width * s.ffn_width + 2 * s.width;
  return static_cast<std::uint64_t>(v * s.width * (s.tied ? 1 : 2) + s.layers * layer + s.width);
}

json stage_json(const Experiment& e, const experiment::Stage& stage) {
  json out{{"name", stage.name}, {"type", std::string(to_string(stage.kind))}, {"steps", stage.steps}};
  if (stage.kind == StageKind::kRl) {
    const auto& plan = stage.rl.plan;
    const auto completions = std::uint64_t{plan.prompts_per_step} * plan.samples_per_prompt;
    out["completions_per_step"] = completions;
    out["response_tokens_per_step_max"] = completions * static_cast<std::uint64_t>(stage.sampling.max_new_tokens);
    out["buffer_groups"] = protocol::buffer_groups(plan);
    out["policy_age_max"] = protocol::worst_age(plan);
  }
  if (stage.kind == StageKind::kSft || stage.kind == StageKind::kPretrain) out["tokens_per_step_max"] = stage.data.dataset.tokens_per_batch;
  if (stage.kind == StageKind::kEval) out["problems"] = stage.eval.problems;
  (void)e;
  return out;
}

json plan_json(const Experiment& e) {
  const auto tokenizer = make_tokenizer(e);
  const std::uint64_t count = parameters(e, tokenizer ? tokenizer->vocab_size() : 0);
  const bool rollouts = experiment::needs_rollouts(e);
  json actors = json::array();
  const auto add = [&](const char* role, std::uint64_t n, int threads, std::uint64_t bytes) {
    actors.push_back({{"role", role}, {"count", n}, {"device", "cpu"}, {"threads", threads}, {"state_bytes", bytes}});
  };
  // float32 weights, gradients, two moments, two publication slots; packed copies for forward and backward, those of
  // bfloat16 half as large. A checkpoint is weights and moments.
  const std::uint64_t packed = count * (e.model.dtype == "bfloat16" ? 2 : 4);
  add("rank", e.trainer.ranks, experiment::rank_threads(e), count * 4 * (1 + 1 + 2 + 2) + 2 * packed);
  add("checkpoint_writer", 1, 1, count * 4 * 3);
  if (rollouts) add("rollout", e.rollout.workers + e.rollout.spares, e.rollout.threads, count * 4 * 2 + packed + e.rollout.engine.kv_memory.count);
  if (rollouts) add("environment", e.environment.runners, 1, 0);
  json stages = json::array();
  for (const auto& stage : e.stages) stages.push_back(stage_json(e, stage));
  return {{"run", e.run.name}, {"folder", e.run.dir},   {"numerics", e.numerics}, {"dtype", e.model.dtype}, {"model", e.model.path.empty() ? e.model.family : e.model.path},
          {"parameters", count == 0 ? json(nullptr) : json(count)}, {"actors", actors}, {"stages", stages}};
}

} // namespace

std::string dry_run(const Experiment& e, bool as_json) {
  const json plan = plan_json(e);
  if (as_json) return plan.dump() + "\n";
  std::string out = "run " + e.run.name + " in " + e.run.dir + ", numerics " + e.numerics + ", products in " + e.model.dtype + "\nmodel " + plan["model"].get<std::string>();
  if (!plan["parameters"].is_null()) out += ", " + std::to_string(plan["parameters"].get<std::uint64_t>()) + " parameters";
  out += "\n\n";
  std::vector<std::vector<std::string>> rows;
  for (const json& a : plan["actors"])
    rows.push_back({a["role"], std::to_string(a["count"].get<std::uint64_t>()), a["device"], std::to_string(a["threads"].get<int>()),
                    plan["parameters"].is_null() ? "-" : format_bytes(a["state_bytes"].get<std::uint64_t>())});
  out += observe::format_table({"actor", "count", "device", "threads", "bytes each"}, rows) + "\n";
  rows.clear();
  for (const json& s : plan["stages"]) {
    std::string detail;
    for (const auto& [key, value] : s.items())
      if (key != "name" && key != "type" && key != "steps") detail += (detail.empty() ? "" : ", ") + key + " " + value.dump();
    rows.push_back({s["name"], s["type"], std::to_string(s["steps"].get<std::uint64_t>()), detail});
  }
  return out + observe::format_table({"stage", "type", "steps", ""}, rows);
}

} // namespace troupe::cli
