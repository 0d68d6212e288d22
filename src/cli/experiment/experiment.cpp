#include "cli/experiment/experiment.h"

#include <algorithm>
#include <thread>

namespace troupe::experiment {

using protocol::StageKind;

bool needs_rollouts(const Experiment& experiment) {
  return std::ranges::any_of(experiment.stages,
                             [](const Stage& s) { return s.kind == StageKind::kRl || s.kind == StageKind::kEval; });
}

int rank_threads(const Experiment& experiment) {
  if (experiment.trainer.threads > 0) return experiment.trainer.threads;
  const std::uint32_t processes = experiment.trainer.ranks + (needs_rollouts(experiment) ? experiment.rollout.workers : 0);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency() / std::max(1U, processes)));
}

optim::ScheduleOptions schedule_of(const Stage& stage) {
  optim::ScheduleOptions schedule = stage.optim.schedule;
  if (schedule.total_steps == 0) schedule.total_steps = static_cast<std::int64_t>(stage.steps);
  return schedule;
}

rl::AlgorithmOptions algorithm_of(const Stage& stage) {
  rl::AlgorithmOptions options = stage.rl.options;
  if (options.loss.aggregation == rl::Aggregation::kConstant && options.loss.constant_tokens == 0)
    options.loss.constant_tokens = stage.sampling.max_new_tokens;
  return options;
}

generate::SamplingParams evaluation_sampling(const Experiment& experiment, const Stage& stage) {
  generate::SamplingParams sampling = stage.kind == StageKind::kRl ? stage.sampling : experiment.rollout.sampling;
  if (stage.eval.max_new_tokens > 0) sampling.max_new_tokens = stage.eval.max_new_tokens;
  sampling.temperature = 0;
  sampling.top_p = 1;
  sampling.top_k = 0;
  sampling.min_p = 0;
  return sampling;
}

std::string export_folder(const Experiment& experiment, const Stage& stage) {
  if (!stage.output.path.empty()) return stage.output.path;
  return experiment.run.dir + "/" + stage.name;
}

std::uint64_t kv_bytes_per_token(const ModelSection& model) {
  const model::DecoderSizes& s = model.sizes;
  if (!model.path.empty() || s.heads <= 0) return 0;
  const std::int64_t head_dim = s.head_dim > 0 ? s.head_dim : s.width / s.heads;
  const std::int64_t kv_heads = s.kv_heads > 0 ? s.kv_heads : s.heads;
  const std::uint64_t bytes = model.dtype == "bfloat16" ? 2 : sizeof(float);
  return static_cast<std::uint64_t>(2 * s.layers * kv_heads * head_dim) * bytes;
}

}  // namespace troupe::experiment
