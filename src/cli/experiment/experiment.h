/// @file
/// An experiment: every component's own options, under the keys of its TOML file. No LibTorch: both executables link
/// it.
///
/// How one is loaded stands in load.h. What a loaded experiment promises: every cross-field rule holds, names and
/// folders are filled in, and each stage carries its own complete options (a stage's table over the top-level
/// sections).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "checkpoint/options.h"
#include "data/options.h"
#include "generate/options.h"
#include "model/spec.h"
#include "optim/options.h"
#include "protocol/options.h"
#include "protocol/run_director.h"
#include "rl/options.h"
#include "tensor/options.h"
#include "train/options.h"

namespace troupe::experiment {

/// `[run]`
struct RunSection {
  std::string name;        ///< Filled in: the stem of the first file.
  std::string dir;         ///< Filled in: runs/<name>.
  std::uint64_t seed = 1;  ///< Of everything random: fresh weights, order of data, sampling.
  bool resume = false;     ///< Continue from the newest checkpoint in `dir`.
};

/// `[model]`
struct ModelSection {
  std::string path;              ///< Hugging Face folder or .gguf file; a config.json: fresh weights; empty: of `family` and `sizes`.
  std::string family = "qwen3";  ///< Of a fresh model.
  model::DecoderSizes sizes;     ///< Of a fresh model; vocab_size 0: as many as the tokenizer has.
  std::string dtype = "float32";  ///< "float32" or "bfloat16": the operands of matrix products.
};

enum class TokenizerSource {
  kModel,       ///< The one that lies with model.path.
  kFile,        ///< `file`.
  kVocabulary,  ///< Made from scratch as `vocabulary` says.
};

/// `[tokenizer]`
struct TokenizerSection {
  std::string type = "model";  ///< "model", "file", "bpe", "bytes" or "characters".
  data::TokenizerOptions file;
  data::VocabularyOptions vocabulary;   ///< `vocabulary.kind` is `type` when that is a kind of vocabulary.
  std::vector<std::string> corpus;      ///< "bpe": text files to learn from; empty: problems of the task.
  std::int64_t corpus_problems = 2000;  ///< "bpe" without files: how many problems.
  /// How conversations become tokens: "auto" (the model's own template, else chatml where the tokenizer has its tokens, else plain),
  /// "template", "chatml" or "plain".
  std::string format = "auto";

  [[nodiscard]] TokenizerSource source() const {
    return type == "model"  ? TokenizerSource::kModel
           : type == "file" ? TokenizerSource::kFile
                            : TokenizerSource::kVocabulary;
  }
};

/// `[kernels]`: who computes which operation.
using KernelsSection = tensor::Backends;

/// `[data]`: what pretrain and sft stages train on.
struct DataSection {
  data::DatasetOptions dataset;       ///< An empty path: the training problems of the task with their answers (sft).
  std::int64_t task_examples = 4096;  ///< How many of those.
};

/// `[rollout]`
struct RolloutSection {
  std::uint32_t workers = 2;  ///< Rollout worker processes.
  std::uint32_t spares = 0;   ///< Started beyond `workers`: warm, without work until one is lost.
  int threads = 1;            ///< Compute threads of each.
  int turns_max = 16;         ///< Turns of an episode.
  generate::EngineOptions engine;
  generate::SamplingParams sampling;
  protocol::RolloutOptions limits;
  Duration drain_deadline =
      std::chrono::seconds(10);  ///< What a leaving worker gets to finish or hand back its samples.
};

/// `[rl]`
struct RlSection {
  std::string algorithm = "grpo";  ///< The row of rl/algorithm.h whose conventions are the defaults of `options`.
  rl::AlgorithmOptions options;    ///< See `algorithm_of`.
  protocol::RolloutPlan plan;      ///< `plan.steps` and `plan.drop_zero_signal` are filled in.
};

/// `[optim]`
struct OptimSection {
  optim::AdamWOptions adamw;
  optim::ScheduleOptions schedule;  ///< See `schedule_of`.
};

/// `[model_loss]`: losses that belong to the model's parts.
using ModelLossSection = train::ModelLossOptions;

/// `[comm]`: how ranks speak to each other.
struct CommSection {
  Duration deadline = std::chrono::seconds(30);  ///< Of each collective, and of the building of the mesh.
};

/// `[trainer]`
struct TrainerSection {
  std::uint32_t ranks = 1;                 ///< Training processes.
  int threads = 0;                         ///< Compute threads of a rank; 0: see `rank_threads`.
  std::int64_t micro_batch_tokens = 4096;  ///< Rows of one forward and backward pass at most.
  int probe_sequences = 4;                 ///< Delivered sequences that are scored again at every published version.
  Duration transfer_deadline = std::chrono::seconds(60);  ///< Of the copy into the checkpoint writer's memory.
  protocol::PublicationOptions publication;
};

/// `[checkpoint]`
struct CheckpointSection {
  checkpoint::CheckpointOptions options;
  protocol::CheckpointCommitOptions commit;  ///< `commit.keep` is `options.keep`.
};

/// `[eval]`: greedy answers on the held-out split, graded by exact match of the task's reward.
struct EvalSection {
  std::int64_t problems = 400;  ///< Problems of one evaluation.
  std::int64_t every = 0;       ///< Every n steps of an rl stage; 0 = never.
  bool before = true;           ///< Before the first step of an rl stage.
  bool after = true;            ///< After its last.
  int max_new_tokens = 0;       ///< Longest answer; 0: see `evaluation_sampling`.
};

/// `[environment]`
struct EnvironmentSection {
  std::uint32_t runners = 1;  ///< Environment processes.
};

/// `[control]`
struct ControlSection {
  std::string listen;                        ///< HOST:PORT where other machines join; empty: none can.
  Duration lease = std::chrono::seconds(5);  ///< Without the head for this long, workers stop at the next edge.
  Duration head_wait =
      std::chrono::seconds(60);  ///< Without the head for this long, agents kill their workers and exit.
  Duration heartbeat = std::chrono::milliseconds(200);  ///< Between two signs of life of a peer.
  protocol::MembershipOptions
      membership;  ///< `membership.dead_after` is the key `timeout`; `drain_deadline` is the rollouts'.
  protocol::RunOptions run;
};

/// `[output]`
struct OutputSection {
  bool tensorboard = true;                      ///< Write event files into <run.dir>/tb.
  std::int64_t samples_per_step = 4;            ///< Completions written to samples.jsonl after each step.
  Duration progress = std::chrono::seconds(5);  ///< Between two progress lines where stderr is not a terminal.
};

/// `export` stages.
struct ExportSection {
  std::string path;               ///< Empty: see `export_folder`.
  std::string dtype = "float32";  ///< Storage of the weights.
};

/// One `[[stage]]`, with everything that holds in it.
struct Stage {
  protocol::StageKind kind = protocol::StageKind::kRl;
  std::string name;                   ///< Filled in: the type, with a number when that is taken.
  std::uint64_t steps = 0;            ///< Optimizer steps; 0 in eval and export stages.
  OptimSection optim;                 ///< pretrain, sft, rl
  ModelLossSection model_loss;        ///< pretrain, sft, rl
  DataSection data;                   ///< pretrain, sft
  RlSection rl;                       ///< rl
  generate::SamplingParams sampling;  ///< rl
  EvalSection eval;                   ///< rl, eval
  ExportSection output;               ///< export
};

struct Experiment {
  RunSection run;
  std::string numerics = "fast";  ///< "fast" or "invariant": what the order of sums may depend on.
  ModelSection model;
  KernelsSection kernels;
  TokenizerSection tokenizer;
  rl::TaskOptions task;  ///< `task.seed` is run.seed.
  DataSection data;
  RolloutSection rollout;
  RlSection rl;
  OptimSection optim;
  ModelLossSection model_loss;
  TrainerSection trainer;
  CommSection comm;
  CheckpointSection checkpoint;
  EvalSection eval;
  EnvironmentSection environment;
  ControlSection control;
  OutputSection output;
  std::vector<Stage> stages;
};

/// Whether any stage generates: rollout workers and environments are needed.
[[nodiscard]] bool needs_rollouts(const Experiment& experiment);

// Values that follow from others unless they are given. They are computed, not filled in, so that a run repeated from
// its run.json with another `--set stage.rl.steps=` still follows.

/// Compute threads of a rank: trainer.threads, else this machine's cores by the processes that compute on it, at least 1.
[[nodiscard]] int rank_threads(const Experiment& experiment);
/// The stage's schedule; `total_steps` 0 became the stage's steps.
[[nodiscard]] optim::ScheduleOptions schedule_of(const Stage& stage);
/// The stage's algorithm; `loss.constant_tokens` 0 became the longest completion.
[[nodiscard]] rl::AlgorithmOptions algorithm_of(const Stage& stage);
/// Greedy sampling for evaluations of the stage, with its length limit.
[[nodiscard]] generate::SamplingParams evaluation_sampling(const Experiment& experiment, const Stage& stage);
/// Where an export stage writes: its path, else <run.dir>/export (<run.dir>/<stage> for further ones).
[[nodiscard]] std::string export_folder(const Experiment& experiment, const Stage& stage);
/// Bytes of KV cache that one token of a fresh model takes; 0 when the model comes from a file.
[[nodiscard]] std::uint64_t kv_bytes_per_token(const ModelSection& model);

}  // namespace troupe::experiment
