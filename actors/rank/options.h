/// @file
/// What a rank needs to know of the experiment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/policy/options.h"
#include "data/options.h"
#include "optim/options.h"
#include "protocol/options.h"
#include "protocol/run_director.h"
#include "rl/options.h"
#include "train/options.h"

namespace troupe::actors {

/// One `[[stage]]`, as far as the rank plays in it.
struct RankStage {
  protocol::StageKind kind = protocol::StageKind::kRl;
  std::string name;
  optim::AdamWOptions optimizer;
  optim::ScheduleOptions schedule;
  train::ModelLossOptions model_loss;
  data::DatasetOptions dataset;      ///< pretrain, sft. An empty path: the training problems of the task with their answers.
  std::int64_t task_examples = 4096; ///< How many of those.
  rl::AlgorithmOptions algorithm;    ///< rl
  double temperature = 1;            ///< rl: that of the samples; log-probs are compared at it.
  std::int64_t response_tokens = 0;  ///< rl: longest response.
  std::int64_t micro_batch_tokens = 4096; ///< Rows of one forward and backward pass at most.
  std::string export_dtype = "float32";   ///< export
};

struct RankOptions {
  PolicyOptions policy;
  std::uint64_t seed = 0;
  int threads = 1;
  std::vector<RankStage> stages;
  rl::TaskOptions task;
  protocol::PublicationOptions publication;
  Duration comm_deadline = std::chrono::seconds(30);     ///< Of each collective, and of the building of the mesh.
  Duration transfer_deadline = std::chrono::seconds(60); ///< Of the copy into the checkpoint writer's memory.
};

} // namespace troupe::actors
