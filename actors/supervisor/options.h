/// @file
/// What the supervisor needs to know of the experiment.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "protocol/options.h"
#include "protocol/run_director.h"

namespace troupe::actors {

/// One `[[stage]]` as the head plays it.
struct HeadStage {
  protocol::StageSpec spec;
  protocol::RolloutPlan plan;            ///< rl
  std::uint64_t evaluation_problems = 0; ///< Problems of one evaluation of this stage.
  std::string export_folder;             ///< export
  double lr = 0;                         ///< pretrain, sft, rl: peak learning rate.
};

struct SupervisorOptions {
  std::string run_name;
  std::filesystem::path folder;  ///< run.dir, absolute.
  std::string run_json;          ///< What run.json holds: the resolved experiment and where it came from.
  std::string experiment;        ///< The resolved experiment as JSON, for workers.
  std::string config_digest;
  std::uint64_t seed = 0;
  bool resume = false;
  std::function<Status(const std::filesystem::path&)> prepare; ///< Fills the new run folder (tokenizer) before anything starts.
  /// The options of a changed experiment, for `troupe config set`.
  std::function<Result<SupervisorOptions>(const std::string& experiment)> recast;
  bool invariant = false;        ///< A log-prob difference above 0 ends the run as failed.

  std::vector<HeadStage> stages;
  std::uint32_t ranks = 1;
  std::uint32_t rollout_workers = 0;
  std::uint32_t environment_runners = 0;
  int rank_threads = 1;
  int rollout_threads = 1;
  int checkpoints_kept = 3;
  int probe_sequences = 4;             ///< Delivered sequences scored again at every published version; 0: none.
  std::int64_t samples_per_step = 4;   ///< Completions written to samples.jsonl after each step.
  bool tensorboard = true;
  Duration progress_interval = std::chrono::seconds(5);

  std::string listen;            ///< HOST:PORT where other machines join; empty: none can.
  Duration heartbeat = std::chrono::milliseconds(200);
  Duration lease = std::chrono::seconds(5);      ///< Without the head for this long, workers stop at their next edge.
  Duration head_wait = std::chrono::seconds(60); ///< Without the head for this long, agents end their workers and themselves.
  protocol::RunOptions run;
  protocol::RolloutOptions rollout;
  protocol::MembershipOptions membership;
  protocol::CheckpointCommitOptions commit;
};

} // namespace troupe::actors
