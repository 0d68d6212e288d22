#include "cli/casting.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "cli/experiment/load.h"
#include "data/arithmetic.h"
#include "data/bpe_trainer.h"
#include "data/chat_source.h"
#include "data/dataset.h"
#include "model/folder.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;
using experiment::Experiment;
using protocol::StageKind;

actors::HeadStage head_stage(const Experiment& e, const experiment::Stage& stage) {
  actors::HeadStage out;
  out.spec.kind = stage.kind;
  out.spec.name = stage.name;
  out.spec.steps = stage.steps;
  out.spec.checkpoint_every = static_cast<std::uint64_t>(e.checkpoint.options.every_steps);
  if (stage.kind == StageKind::kRl) {
    out.spec.evaluate_before = stage.eval.before;
    out.spec.evaluate_every = static_cast<std::uint64_t>(stage.eval.every);
    out.spec.evaluate_after = stage.eval.after;
    out.plan = stage.rl.plan;
  }
  out.lr = stage.optim.adamw.lr;
  out.evaluation_problems = static_cast<std::uint64_t>(stage.eval.problems);
  if (stage.kind == StageKind::kExport) out.export_folder = fs::absolute(experiment::export_folder(e, stage)).string();
  return out;
}

// Problems and answers as text, for a vocabulary that is learned from the task.
std::vector<std::string> task_corpus(const Experiment& e) {
  std::vector<std::string> corpus;
  if (e.task.type == "arithmetic") {
    for (std::int64_t i = 0; i < e.tokenizer.corpus_problems; ++i) {
      const auto problem = data::make_problem(e.task.arithmetic, e.task.seed, static_cast<std::uint64_t>(i), data::Split::kTrain);
      corpus.push_back(problem.question + problem.answer);
    }
  } else if (e.task.type == "jsonl") {
    if (const auto rows = data::read_tasks(e.task.jsonl, data::Split::kTrain))
      for (const data::TaskRow& row : *rows)
        for (const data::Message& message : row.messages) corpus.push_back(message.content);
  }
  return corpus;
}

// A config.json alone has its tokenizer and template beside it.
fs::path release_of(const std::string& model) {
  const fs::path path = model;
  return model::is_description(path) ? path.parent_path() : path;
}

} // namespace

Result<std::string> resolve_path(const std::string& path) {
  constexpr std::string_view kPrefix = "deps:";
  if (!path.starts_with(kPrefix)) return path;
  const std::string link = path.substr(kPrefix.size());
  const fs::path folder = fs::path(TROUPE_SOURCE_DIR) / ".deps" / link;
  std::error_code ec;
  if (!fs::exists(folder, ec)) return fail(ErrorCode::kNotFound, path + " is not on this machine; fetch it with: scripts/setup.sh --model " + link);
  std::vector<fs::path> weights;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "", ec))
    if (entry.path().extension() == ".gguf") weights.push_back(entry.path());
  return weights.size() == 1 ? weights.front().string() : folder.string();
}

Result<data::Tokenizer> make_tokenizer(const Experiment& e) {
  switch (e.tokenizer.source()) {
    case experiment::TokenizerSource::kModel: return data::Tokenizer::load(release_of(e.model.path));
    case experiment::TokenizerSource::kFile: return data::Tokenizer::load(e.tokenizer.file.path, e.tokenizer.file.pattern);
    case experiment::TokenizerSource::kVocabulary: break;
  }
  std::vector<std::string> corpus;
  for (const std::string& file : e.tokenizer.corpus) {
    TROUPE_TRY(auto text, read_file(file));
    corpus.push_back(std::move(text));
  }
  if (corpus.empty() && e.tokenizer.vocabulary.kind == "bpe") corpus = task_corpus(e);
  return data::make_vocabulary(e.tokenizer.vocabulary, corpus);
}

Status save_tokenizer(const Experiment& e, const data::Tokenizer& tokenizer, const fs::path& folder) {
  data::ChatSource source;
  if (e.tokenizer.source() == experiment::TokenizerSource::kModel) {
    TROUPE_TRY(const auto spec, model::configured_spec(e.model.path));
    TROUPE_TRY(source, data::find_chat_template(release_of(e.model.path), spec.family));
  } else if (e.tokenizer.source() == experiment::TokenizerSource::kFile) {
    const fs::path path = e.tokenizer.file.path;
    const bool whole = fs::is_directory(path) || path.extension() == ".gguf";
    TROUPE_TRY(source, data::find_chat_template(whole ? path : path.parent_path(), ""));
  }
  TROUPE_TRY_STATUS(make_folders(folder));
  return tokenizer.save(folder, source.jinja);
}

actors::SupervisorOptions supervisor_options(const Experiment& e) {
  actors::SupervisorOptions o;
  o.run_name = e.run.name;
  o.folder = fs::absolute(e.run.dir);
  o.experiment = experiment::experiment_to_json(e).dump();
  o.config_digest = hex64(hash64(std::string_view(o.experiment)));
  o.recast = [](const std::string& text) -> Result<actors::SupervisorOptions> {
    TROUPE_TRY(const auto document, parse_json(text, "the experiment"));
    TROUPE_TRY(const auto changed, experiment::experiment_from_json(document));
    return supervisor_options(changed);
  };
  o.seed = e.run.seed;
  o.resume = e.run.resume;
  o.invariant = e.numerics == "invariant";
  for (const experiment::Stage& stage : e.stages) o.stages.push_back(head_stage(e, stage));
  const bool rollouts = experiment::needs_rollouts(e);
  o.rollout_workers = rollouts ? e.rollout.workers : 0;
  o.environment_runners = rollouts ? e.environment.runners : 0;
  o.ranks = e.trainer.ranks;
  o.rank_threads = experiment::rank_threads(e);
  o.rollout_threads = e.rollout.threads;
  o.checkpoints_kept = e.checkpoint.options.keep;
  o.probe_sequences = e.trainer.probe_sequences;
  o.samples_per_step = e.output.samples_per_step;
  o.tensorboard = e.output.tensorboard;
  o.progress_interval = e.output.progress;
  o.listen = e.control.listen;
  o.heartbeat = e.control.heartbeat;
  o.lease = e.control.lease;
  o.head_wait = e.control.head_wait;
  o.run = e.control.run;
  o.rollout = e.rollout.limits;
  o.membership = e.control.membership;
  o.membership.spares = e.rollout.spares;
  o.commit = e.checkpoint.commit;
  return o;
}

actors::EnvironmentRunnerOptions environment_options(const Experiment& e) {
  actors::EnvironmentRunnerOptions o;
  o.task = e.task;
  return o;
}

} // namespace troupe::cli
