/// @file
/// Head <-> rank: training steps, weights to publish, state to save. StartStage, BatchGroup and TrainStep go to every rank; rank/0 alone answers
/// for all of them, publishes weights and exports.
#pragma once

#include "actors/messages/rollout.h"
#include "actors/messages/worker.h"

#include <string>
#include <vector>

namespace troupe::actors {

/// Head -> rank: the steps that follow belong to this stage.
struct StartStage {
  std::int32_t stage = 0;       ///< Index into the experiment's stages.
  std::uint64_t steps_done = 0; ///< Steps of the stage already trained (resume): optimizer and data cursor come from the commit then.
};
template <class Inspector>
bool inspect(Inspector& f, StartStage& x) {
  return f.object(x).fields(f.field("stage", x.stage), f.field("steps_done", x.steps_done));
}

/// Head -> rank: one group of the training batch that starts from `from`. Sent before TrainStep, ordered by (prompt, sample).
struct BatchGroup {
  PolicyVersion from;
  std::uint64_t prompt = 0;
  std::vector<std::int32_t> prompt_ids;
  std::vector<SampleResult> samples;
};
template <class Inspector>
bool inspect(Inspector& f, BatchGroup& x) {
  return f.object(x).fields(f.field("from", x.from), f.field("prompt", x.prompt), f.field("prompt_ids", x.prompt_ids), f.field("samples", x.samples));
}

/// Head -> rank: the peak learning rate of a stage, from its next step on (`troupe config set`).
struct SetLearningRate {
  std::int32_t stage = 0;
  double lr = 0;
};
template <class Inspector>
bool inspect(Inspector& f, SetLearningRate& x) {
  return f.object(x).fields(f.field("stage", x.stage), f.field("lr", x.lr));
}

/// Head -> rank: train one step from `from`, on the groups sent before or, in a pretrain or sft stage, on the data set.
/// Idempotent: a rank that is past `from` answers at once. Answered by StepDone.
struct TrainStep {
  PolicyVersion from;
  std::uint32_t groups = 0;
};
template <class Inspector>
bool inspect(Inspector& f, TrainStep& x) {
  return f.object(x).fields(f.field("from", x.from), f.field("groups", x.groups));
}

struct StepDone {
  PolicyVersion version; ///< Of the weights after the step.
  std::uint64_t tokens = 0;
  std::vector<MetricValue> metrics;
};
template <class Inspector>
bool inspect(Inspector& f, StepDone& x) {
  return f.object(x).fields(f.field("version", x.version), f.field("tokens", x.tokens), f.field("metrics", x.metrics));
}

/// Head -> rank (weight store): copy the weights of `version` into a slot before any later step. Answered by WeightsPublished.
struct PublishWeights {
  PolicyVersion version;
};
template <class Inspector>
bool inspect(Inspector& f, PublishWeights& x) {
  return f.object(x).fields(f.field("version", x.version));
}

struct WeightsPublished {
  PolicyVersion version;
  bool ok = false;
  Error error;
  std::uint64_t bytes = 0;
  double seconds = 0;
};
template <class Inspector>
bool inspect(Inspector& f, WeightsPublished& x) {
  return f.object(x).fields(f.field("version", x.version), f.field("ok", x.ok), f.field("error", x.error), f.field("bytes", x.bytes),
                            f.field("seconds", x.seconds));
}

/// Head -> rank (weight store): a lease on weights of at least `wanted` for a reader. Answered by LeaseGranted.
struct LeaseWeights {
  std::string reader;
  std::uint32_t incarnation = 0;
  std::uint64_t request = 0;
  PolicyVersion wanted;
};
template <class Inspector>
bool inspect(Inspector& f, LeaseWeights& x) {
  return f.object(x).fields(f.field("reader", x.reader), f.field("incarnation", x.incarnation), f.field("request", x.request),
                            f.field("wanted", x.wanted));
}

struct LeaseGranted {
  std::string reader;
  std::uint32_t incarnation = 0;
  bool ok = false;
  Error error;
  WeightTicket ticket;
};
template <class Inspector>
bool inspect(Inspector& f, LeaseGranted& x) {
  return f.object(x).fields(f.field("reader", x.reader), f.field("incarnation", x.incarnation), f.field("ok", x.ok), f.field("error", x.error),
                            f.field("ticket", x.ticket));
}

/// Head -> rank (weight store): the reader is done, or gone (`all`).
struct LeaseEnded {
  std::string reader;
  std::uint32_t incarnation = 0;
  std::uint64_t request = 0;
  bool all = false;
};
template <class Inspector>
bool inspect(Inspector& f, LeaseEnded& x) {
  return f.object(x).fields(f.field("reader", x.reader), f.field("incarnation", x.incarnation), f.field("request", x.request), f.field("all", x.all));
}

/// Inside the rank: a slot was filled and hashed.
struct SlotFilled {
  std::uint32_t slot = 0;
  PolicyVersion version;
  bool ok = false;
  std::string reason;
  std::vector<TensorEntry> tensors;
  double seconds = 0;
};
template <class Inspector>
bool inspect(Inspector& f, SlotFilled& x) {
  return f.object(x).fields(f.field("slot", x.slot), f.field("version", x.version), f.field("ok", x.ok), f.field("reason", x.reason),
                            f.field("tensors", x.tensors), f.field("seconds", x.seconds));
}

/// Head -> rank: write the Hugging Face layout into a folder. Answered by Exported or WorkerFailed.
struct ExportModel {
  std::int32_t stage = 0;
  std::string folder;
};
template <class Inspector>
bool inspect(Inspector& f, ExportModel& x) {
  return f.object(x).fields(f.field("stage", x.stage), f.field("folder", x.folder));
}

struct Exported {
  std::int32_t stage = 0;
  bool ok = false;
  Error error;
  std::string folder;
  std::uint64_t bytes = 0;
};
template <class Inspector>
bool inspect(Inspector& f, Exported& x) {
  return f.object(x).fields(f.field("stage", x.stage), f.field("ok", x.ok), f.field("error", x.error), f.field("folder", x.folder),
                            f.field("bytes", x.bytes));
}

} // namespace troupe::actors
