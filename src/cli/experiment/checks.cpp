#include "cli/experiment/checks.h"

#include <algorithm>
#include <map>

#include "base/endpoint.h"
#include "data/arithmetic.h"
#include "protocol/options.h"
#include "rl/algorithm.h"
#include "rl/reward.h"

namespace troupe::experiment {
namespace {

using config::CrossChecks;
using protocol::StageKind;

// A name that becomes a folder, a command-line word and a part of a socket's path.
bool is_plain_name(const std::string& name) {
  constexpr std::size_t kNameMax = 64;
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= kNameMax && name.front() != '.' && name.front() != '-' &&
         name.find_first_not_of(kAllowed) == std::string::npos;
}

void check_names(const Experiment& e, CrossChecks& checks) {
  if (!is_plain_name(e.run.name))
    checks.problem({"run.name", "run"}, "run.name \"" + e.run.name + "\" cannot name a folder",
                   "up to 64 of a-z A-Z 0-9 . _ -, not starting with . or -");
  std::map<std::string, std::size_t> seen;
  for (std::size_t i = 0; i < e.stages.size(); ++i) {
    const std::string path = "stage." + std::to_string(i);
    const std::string& name = e.stages[i].name;
    if (!is_plain_name(name))
      checks.problem({path + ".name", path}, path + ".name \"" + name + "\" cannot name a folder",
                     "use a-z A-Z 0-9 . _ -");
    const auto [first, fresh] = seen.emplace(name, i);
    if (!fresh)
      checks.conflict({path + ".name", "stage." + std::to_string(first->second) + ".name"},
                      "two stages are called \"" + name + "\"", "give them different names");
  }
}

void check_model(const Experiment& e, CrossChecks& checks) {
  const ModelSection& m = e.model;
  const std::vector<std::pair<const char*, std::int64_t>> sizes = {
      {"width", m.sizes.width}, {"layers", m.sizes.layers}, {"heads", m.sizes.heads}, {"ffn_width", m.sizes.ffn_width}};
  if (!m.path.empty()) {
    for (const char* key : {"family", "vocab_size", "width", "layers", "heads", "kv_heads", "head_dim", "ffn_width",
                            "context", "rope_theta", "norm_eps", "init_std", "tied"}) {
      const std::string path = std::string("model.") + key;
      if (checks.given(path))
        checks.conflict({path, "model.path"}, path + " is for fresh models, but model.path names a checkpoint",
                        "drop one of the two");
    }
    return;
  }
  std::string missing;
  for (const auto& [key, value] : sizes)
    if (value == 0) missing += (missing.empty() ? "" : ", ") + std::string(key);
  if (!missing.empty()) {
    checks.problem({"model", "stage"}, "the model is not described: " + missing + " missing in [model]",
                   "give model.path, or family and sizes of a fresh model");
    return;
  }
  if (m.sizes.head_dim == 0 && m.sizes.width % m.sizes.heads != 0)
    checks.conflict({"model.heads", "model.width"},
                    "model.width " + std::to_string(m.sizes.width) + " is not a multiple of model.heads " +
                        std::to_string(m.sizes.heads),
                    "or give model.head_dim");
  if (m.sizes.kv_heads != 0 && m.sizes.heads % m.sizes.kv_heads != 0)
    checks.conflict({"model.kv_heads", "model.heads"}, "model.heads " + std::to_string(m.sizes.heads) +
                                                           " is not a multiple of model.kv_heads " +
                                                           std::to_string(m.sizes.kv_heads));
}

void check_kernels(const Experiment& e, CrossChecks& checks) {
  using tensor::Backend;
  for (const tensor::BackendRow& row : tensor::kBackendRows) {
    const Backend backend = e.kernels.*row.member;
    const std::string key = std::string("kernels.") + row.key;
    const bool on_gpu = tensor::where_of(backend) != kernels::Where::kHost;
    const bool other_bits = backend == Backend::kAten || backend == Backend::kChunked || (backend == Backend::kCuda && !row.same_bits);
    if (e.numerics == "invariant" && other_bits) {
      const std::string value = backend == Backend::kAten ? "aten" : backend == Backend::kCuda ? "cuda" : "chunked";
      checks.conflict({key, "numerics"}, key + " = \"" + value + "\" cannot keep what numerics = \"invariant\" promises",
                      on_gpu ? "use \"cpu\": the GPU's gradient sums in another order; or \"check:cuda\" to compare the two"
                             : "use \"cpu\", or \"check\" to compare the two");
    }
    if (on_gpu && !row.bfloat16 && e.model.dtype == "bfloat16")
      checks.conflict({key, "model.dtype"}, key + " = \"" + (backend == Backend::kCuda ? "cuda" : "check:cuda") + "\" needs model.dtype = \"float32\"",
                      "use \"cpu\": this kernel has no form for bfloat16 on a GPU");
  }
}

void check_tokenizer(const Experiment& e, CrossChecks& checks) {
  const TokenizerSection& t = e.tokenizer;
  if (t.source() == TokenizerSource::kModel && e.model.path.empty())
    checks.problem(
        {"tokenizer.type", "tokenizer", "model"}, "there is no tokenizer: a fresh model brings none",
        "set tokenizer.type to \"file\" with tokenizer.path, or to \"bpe\", \"bytes\" or \"characters\" to make one");
  if (t.source() == TokenizerSource::kFile && t.file.path.empty())
    checks.problem({"tokenizer.path", "tokenizer.type"}, "tokenizer.path is missing",
                   "name a tokenizer.json, its folder, a .gguf or a .tiktoken file");
  if (t.source() != TokenizerSource::kVocabulary) return;
  const auto has = [&](const std::string& name) {
    return std::ranges::find(t.vocabulary.added, name) != t.vocabulary.added.end();
  };
  if (!has(t.vocabulary.eos))
    checks.conflict({"tokenizer.eos", "tokenizer.added"},
                    "tokenizer.eos \"" + t.vocabulary.eos + "\" is not in tokenizer.added");
  if (!t.vocabulary.pad.empty() && !has(t.vocabulary.pad))
    checks.conflict({"tokenizer.pad", "tokenizer.added"},
                    "tokenizer.pad \"" + t.vocabulary.pad + "\" is not in tokenizer.added");
}

void check_task(const Experiment& e, CrossChecks& checks) {
  const rl::TaskOptions& t = e.task;
  if (t.reward_min > t.reward_max)
    checks.conflict({"task.reward_min", "task.reward_max"}, "task.reward_min is above task.reward_max");
  if (t.type == "jsonl" && t.jsonl.path.empty())
    checks.problem({"task.path", "task.type"}, "task.path is missing", "name a .jsonl file");
  if (t.type == "program" && t.program.command.empty())
    checks.problem({"task.command", "task.type"}, "task.command is missing",
                   "for example command = [\"python3\", \"task.py\"]");
  if (t.type == "arithmetic") {
    if (const Status status = data::check_options(t.arithmetic); !status) {
      checks.problem({"task", "task.type"}, "task: " + status.error().message);
    } else if (const std::uint64_t distinct = data::distinct_problems(t.arithmetic, data::Split::kEval); distinct > 0) {
      for (std::size_t i = 0; i < e.stages.size(); ++i) {
        const Stage& stage = e.stages[i];
        if ((stage.kind == StageKind::kRl || stage.kind == StageKind::kEval) &&
            static_cast<std::uint64_t>(stage.eval.problems) > distinct)
          checks.conflict({"stage." + std::to_string(i) + ".eval.problems", "task.eval_fraction"},
                          "the held-out split has " + std::to_string(distinct) +
                              " different problems, eval.problems asks for " + std::to_string(stage.eval.problems));
      }
    }
  }
  if (t.type != "program")
    if (const auto reward = rl::make_reward(t.reward); !reward)
      checks.problem({"task.reward", "task"}, "task.reward: " + reward.error().message);
}

// The longest sequence the model takes; 0 when only its checkpoint knows.
std::int64_t context_of(const Experiment& e) {
  const std::int64_t model = e.model.path.empty() ? e.model.sizes.context : 0;
  const std::int64_t engine = e.rollout.engine.context_tokens;
  if (model == 0 || engine == 0) return std::max(model, engine);
  return std::min(model, engine);
}

void check_rollout(const Experiment& e, CrossChecks& checks) {
  if (e.model.path.empty() && e.rollout.engine.context_tokens > e.model.sizes.context)
    checks.conflict({"rollout.context_tokens", "model.context"},
                    "rollout.context_tokens " + std::to_string(e.rollout.engine.context_tokens) +
                        " is longer than model.context " + std::to_string(e.model.sizes.context));
  if (!needs_rollouts(e)) return;
  if (e.rollout.workers == 0)
    checks.problem({"rollout.workers"}, "rollout.workers is 0, but the run has a stage that generates",
                   "give at least one worker; `troupe scale rollout=0` pauses a live run");
  const std::uint64_t sequence = kv_bytes_per_token(e.model) * static_cast<std::uint64_t>(context_of(e));
  if (e.rollout.engine.kv_pages == 0 && sequence > e.rollout.engine.kv_memory.count)
    checks.conflict({"rollout.kv_cache", "model.context"},
                    "rollout.kv_cache " + format_bytes(e.rollout.engine.kv_memory.count) +
                        " does not hold one sequence of " + std::to_string(context_of(e)) + " tokens (" +
                        format_bytes(sequence) + ")");
}

void check_sampling(const Experiment& e, const Stage& stage, const std::string& path, CrossChecks& checks) {
  const generate::SamplingParams& s = stage.sampling;
  const std::string type = path + ".type";
  const std::string why =
      "kept sets are not recorded, so that every ratio would be wrong by the probability that was cut off";
  const auto refuse = [&](const char* key, const std::string& value, const char* neutral) {
    checks.conflict({path + ".sampling." + key, type},
                    std::string(key) + " = " + value + " cannot be used in an rl stage: " + why,
                    "train with " + std::string(key) + " = " + neutral + "; evaluation is greedy anyway");
  };
  if (s.top_p < 1) refuse("top_p", config::to_toml_inline({s.top_p, {}}), "1");
  if (s.top_k > 0) refuse("top_k", std::to_string(s.top_k), "0");
  if (s.min_p > 0) refuse("min_p", config::to_toml_inline({s.min_p, {}}), "0");
  if (s.temperature == 0)
    checks.conflict({path + ".sampling.temperature", type},
                    "temperature = 0 cannot be used in an rl stage: every sample of a group would be the same",
                    "1 is usual");
  if (const std::int64_t context = context_of(e); context > 0 && s.max_new_tokens >= context)
    checks.conflict({path + ".sampling.max_new_tokens",
                     e.rollout.engine.context_tokens > 0 ? "rollout.context_tokens" : "model.context"},
                    "max_new_tokens " + std::to_string(s.max_new_tokens) +
                        " leaves no room for a prompt in a context of " + std::to_string(context) + " tokens");
}

void check_rl(const Experiment& e, const Stage& stage, const std::string& path, CrossChecks& checks) {
  const protocol::RolloutPlan& plan = stage.rl.plan;
  const std::string rl = path + ".rl";
  if (plan.staleness == 0 && checks.given(rl + ".window_fraction") && plan.window_fraction * plan.prompts_per_step >= 2)
    checks.conflict({rl + ".window_fraction", rl + ".staleness"},
                    "staleness = 0 trains on the newest weights only: there is no window to look ahead in",
                    "drop window_fraction, or set staleness = 1");
  if (plan.max_age && *plan.max_age < plan.staleness)
    checks.conflict({rl + ".max_age", rl + ".staleness"}, "max_age " + std::to_string(*plan.max_age) +
                                                              " is below staleness " + std::to_string(plan.staleness) +
                                                              ": samples that the loop makes would be refused");
  if (const Status status = rl::validate(algorithm_of(stage), plan.staleness == 0); !status)
    checks.problem({rl + ".loss", rl + ".algorithm", rl, path}, "rl." + status.error().message);
  if (stage.rl.options.overlong.penalty_buffer >= stage.sampling.max_new_tokens)
    checks.conflict({rl + ".overlong.penalty_buffer", path + ".sampling.max_new_tokens"},
                    "overlong.penalty_buffer is not shorter than the longest completion");
  if (stage.rl.plan.samples_per_prompt > e.rollout.limits.worker_samples_max)
    checks.conflict({rl + ".group_size", "rollout.max_in_flight"},
                    "a group of " + std::to_string(plan.samples_per_prompt) +
                        " samples does not fit rollout.max_in_flight " +
                        std::to_string(e.rollout.limits.worker_samples_max));
}

void check_data(const Experiment& e, const Stage& stage, const std::string& path, CrossChecks& checks) {
  const data::DatasetOptions& d = stage.data.dataset;
  if (d.path.empty() && stage.kind == StageKind::kPretrain)
    checks.problem({path + ".data.path", path}, "a pretrain stage needs data.path",
                   "name a .jsonl file with text per line");
  if (d.path.empty() && stage.kind == StageKind::kSft && e.task.type == "program")
    checks.problem({path + ".data.path", path},
                   "an sft stage needs data.path: a program task has no answers to learn from", "name a .jsonl file");
  if (d.tokens_per_batch < d.context_tokens)
    checks.conflict({path + ".data.tokens_per_batch", path + ".data.context_tokens"},
                    "a batch of " + std::to_string(d.tokens_per_batch) + " tokens does not hold a document of " +
                        std::to_string(d.context_tokens),
                    "documents are never cut to fill a batch");
  if (e.model.path.empty() && d.context_tokens > e.model.sizes.context)
    checks.conflict({path + ".data.context_tokens", "model.context"},
                    "data.context_tokens " + std::to_string(d.context_tokens) + " is longer than model.context " +
                        std::to_string(e.model.sizes.context));
}

void check_stages(const Experiment& e, CrossChecks& checks) {
  if (e.stages.empty())
    checks.problem({"stage"}, "there is no [[stage]]: nothing to do",
                   "add [[stage]] with type = \"pretrain\", \"sft\", \"rl\", \"eval\" or \"export\"");
  for (std::size_t i = 0; i < e.stages.size(); ++i) {
    const Stage& stage = e.stages[i];
    const std::string path = "stage." + std::to_string(i);
    const bool trains =
        stage.kind == StageKind::kPretrain || stage.kind == StageKind::kSft || stage.kind == StageKind::kRl;
    if (trains && stage.steps == 0)
      checks.problem({path + ".steps", path + ".type"}, path + ".steps is missing", "how many optimizer steps");
    if (trains && schedule_of(stage).warmup_steps > static_cast<std::int64_t>(stage.steps))
      checks.conflict(
          {path + ".optim.warmup_steps", path + ".steps"},
          "the warm-up of " + std::to_string(stage.optim.schedule.warmup_steps) + " steps is longer than the stage");
    if (stage.kind == StageKind::kPretrain || stage.kind == StageKind::kSft) check_data(e, stage, path, checks);
    if (stage.kind != StageKind::kRl) continue;
    check_sampling(e, stage, path, checks);
    check_rl(e, stage, path, checks);
  }
}

void check_control(const Experiment& e, CrossChecks& checks) {
  const ControlSection& c = e.control;
  const auto ordered = [&](const char* shorter, Duration a, const char* longer, Duration b, const char* why) {
    if (a >= b)
      checks.conflict({shorter, longer}, std::string(shorter) + " must be shorter than " + longer + ": " + why);
  };
  ordered("control.heartbeat", c.heartbeat, "control.suspect_after", c.membership.suspect_after,
          "every peer would be suspect");
  ordered("control.suspect_after", c.membership.suspect_after, "control.timeout", c.membership.dead_after,
          "work is kept away before a worker is killed");
  ordered("control.lease", c.lease, "control.head_wait", c.head_wait, "workers stop before agents give up");
  if (!c.listen.empty())
    if (const auto at = parse_endpoint(c.listen); !at) checks.problem({"control.listen"}, at.error().message, "such as 10.0.0.1:7700");
  ordered("comm.deadline", e.comm.deadline, "control.work_silence", c.membership.work_silence,
          "a rank that waits for another one is not stuck");
  ordered("comm.deadline", e.comm.deadline, "control.mesh_deadline", c.run.mesh_deadline,
          "ranks that cannot connect say so before the mesh is given up");
}

}  // namespace

void check_experiment(const Experiment& experiment, CrossChecks& checks) {
  check_names(experiment, checks);
  check_model(experiment, checks);
  check_kernels(experiment, checks);
  check_tokenizer(experiment, checks);
  check_task(experiment, checks);
  check_rollout(experiment, checks);
  check_stages(experiment, checks);
  check_control(experiment, checks);
}

}  // namespace troupe::experiment
