/// @file
/// Head <-> rank: training steps, weights to publish, state to save.
#pragma once

#include "actors/messages/rollout.h"
#include "actors/messages/worker.h"

#include <string>
#include <vector>

namespace troupe::actors {

/// Head -> rank: make the state ready for a stage. Answered by StageReady.
struct StartStage {
  std::int32_t stage = 0; ///< Index into the experiment's stages.
  std::uint64_t step = 0; ///< Steps of the stage already trained (resume).
  std::uint32_t epoch = 0;
  std::string checkpoint; ///< Folder of a commit to load first; empty: go on with the state in memory.
};
template <class Inspector>
bool inspect(Inspector& f, StartStage& x) {
  return f.object(x).fields(f.field("stage", x.stage), f.field("step", x.step), f.field("epoch", x.epoch), f.field("checkpoint", x.checkpoint));
}

struct StageReady {
  std::int32_t stage = 0;
  std::uint64_t parameters = 0;
  PolicyVersion version;
  std::uint64_t total_steps = 0; ///< Optimizer steps since the start of the run.
};
template <class Inspector>
bool inspect(Inspector& f, StageReady& x) {
  return f.object(x).fields(f.field("stage", x.stage), f.field("parameters", x.parameters), f.field("version", x.version),
                            f.field("total_steps", x.total_steps));
}

/// Head -> rank: one group of the coming training batch. Groups of a batch arrive in the order of (prompt, sample), before TrainStep.
struct BatchGroup {
  std::uint64_t step = 0;
  std::uint64_t prompt = 0;
  std::vector<std::int32_t> prompt_ids;
  std::vector<SampleResult> samples;
};
template <class Inspector>
bool inspect(Inspector& f, BatchGroup& x) {
  return f.object(x).fields(f.field("step", x.step), f.field("prompt", x.prompt), f.field("prompt_ids", x.prompt_ids), f.field("samples", x.samples));
}

/// Head -> rank: train one step (on the groups sent before it, or on the data set of a pretrain or sft stage). Answered by StepDone.
struct TrainStep {
  std::int32_t stage = 0;
  std::uint64_t step = 0; ///< 1-based step of the stage.
  std::uint32_t epoch = 0;
  std::uint32_t groups = 0;
};
template <class Inspector>
bool inspect(Inspector& f, TrainStep& x) {
  return f.object(x).fields(f.field("stage", x.stage), f.field("step", x.step), f.field("epoch", x.epoch), f.field("groups", x.groups));
}

struct StepDone {
  std::int32_t stage = 0;
  std::uint64_t step = 0;
  PolicyVersion version; ///< Of the weights after the step.
  std::uint64_t tokens = 0;
  std::vector<MetricValue> metrics;
};
template <class Inspector>
bool inspect(Inspector& f, StepDone& x) {
  return f.object(x).fields(f.field("stage", x.stage), f.field("step", x.step), f.field("version", x.version), f.field("tokens", x.tokens),
                            f.field("metrics", x.metrics));
}

/// Head -> rank (weight store): copy the current weights into a slot and announce them. Answered by WeightsPublished.
struct PublishWeights {};
template <class Inspector>
bool inspect(Inspector& f, PublishWeights& x) {
  return f.object(x).fields();
}

struct WeightsPublished {
  PolicyVersion version;
  std::uint64_t bytes = 0;
  double seconds = 0;
};
template <class Inspector>
bool inspect(Inspector& f, WeightsPublished& x) {
  return f.object(x).fields(f.field("version", x.version), f.field("bytes", x.bytes), f.field("seconds", x.seconds));
}

/// Head -> rank (weight store): a lease on the newest weights for a reader. Answered by LeaseGranted.
struct LeaseWeights {
  std::string reader;
};
template <class Inspector>
bool inspect(Inspector& f, LeaseWeights& x) {
  return f.object(x).fields(f.field("reader", x.reader));
}

struct LeaseGranted {
  std::string reader;
  WeightTicket ticket;
};
template <class Inspector>
bool inspect(Inspector& f, LeaseGranted& x) {
  return f.object(x).fields(f.field("reader", x.reader), f.field("ticket", x.ticket));
}

/// Head -> rank (weight store): the reader is done or gone.
struct LeaseEnded {
  std::string reader;
  std::uint64_t lease = 0;
};
template <class Inspector>
bool inspect(Inspector& f, LeaseEnded& x) {
  return f.object(x).fields(f.field("reader", x.reader), f.field("lease", x.lease));
}

/// Head -> rank: write the Hugging Face layout into a folder. Answered by Exported or WorkerFailed.
struct ExportModel {
  std::string folder;
};
template <class Inspector>
bool inspect(Inspector& f, ExportModel& x) {
  return f.object(x).fields(f.field("folder", x.folder));
}

struct Exported {
  std::string folder;
  std::uint64_t bytes = 0;
};
template <class Inspector>
bool inspect(Inspector& f, Exported& x) {
  return f.object(x).fields(f.field("folder", x.folder), f.field("bytes", x.bytes));
}

} // namespace troupe::actors
