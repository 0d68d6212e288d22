#include "cli/casting_worker.h"

namespace troupe::cli {
namespace {

using experiment::Experiment;

actors::PolicyOptions policy_options(const Experiment& e, const actors::WorkerFrame& frame) {
  actors::PolicyOptions o;
  o.model_path = e.model.path;
  o.family = e.model.family;
  o.sizes = e.model.sizes;
  o.seed = e.run.seed;
  o.tokenizer_folder = frame.run_folder + "/tokenizer";
  o.format = e.tokenizer.format;
  o.backends = e.kernels;
  o.drafts = e.rollout.engine.draft_tokens > 0;
  if (e.model.dtype == "bfloat16") o.precision = kernels::Precision::kBfloat16;
  return o;
}

} // namespace

actors::RankOptions rank_options(const Experiment& e, const actors::WorkerFrame& frame) {
  actors::RankOptions o;
  o.policy = policy_options(e, frame);
  o.seed = e.run.seed;
  o.threads = experiment::rank_threads(e);
  o.comm_deadline = e.comm.deadline;
  o.task = e.task;
  o.publication = e.trainer.publication;
  o.transfer_deadline = e.trainer.transfer_deadline;
  for (const experiment::Stage& s : e.stages) {
    actors::RankStage stage;
    stage.kind = s.kind;
    stage.name = s.name;
    stage.optimizer = s.optim.adamw;
    stage.schedule = experiment::schedule_of(s);
    stage.model_loss = s.model_loss;
    stage.dataset = s.data.dataset;
    stage.task_examples = s.data.task_examples;
    stage.algorithm = experiment::algorithm_of(s);
    stage.temperature = s.sampling.temperature;
    stage.response_tokens = s.sampling.max_new_tokens;
    stage.micro_batch_tokens = e.trainer.micro_batch_tokens;
    stage.export_dtype = s.output.dtype;
    o.stages.push_back(std::move(stage));
  }
  return o;
}

actors::RolloutWorkerOptions rollout_options(const Experiment& e, const actors::WorkerFrame& frame) {
  actors::RolloutWorkerOptions o;
  o.policy = policy_options(e, frame);
  o.seed = e.run.seed;
  o.threads = e.rollout.threads;
  o.engine = e.rollout.engine;
  o.engine.sampling = tensor::where_of(e.kernels.sampling);
  o.turns_max = e.rollout.turns_max;
  o.samples_max = 2 * std::size_t{e.rollout.limits.worker_samples_max};
  o.environment_deadline = e.task.deadline + std::chrono::seconds(5); // the environment's own deadline comes first
  for (const experiment::Stage& s : e.stages) {
    actors::RolloutStage stage;
    stage.train = s.sampling;
    stage.eval = experiment::evaluation_sampling(e, s);
    o.stages.push_back(std::move(stage));
  }
  return o;
}

} // namespace troupe::cli
