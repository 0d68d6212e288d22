/// @file
/// The engine without tensors: requests, scheduling, sampling, stopping. The forward pass is an interface, so that
/// tests bring their own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/rng.h"
#include "generate/options.h"
#include "generate/request.h"
#include "generate/sampler.h"
#include "generate/scheduler.h"
#include "generate/stats.h"
#include "generate/stop_matcher.h"
#include "kernels/team.h"
#include "model/batch.h"

namespace troupe::generate {

/// Rows of the newest forward pass of which the tokens after the next are guessed, as a batch of their own.
struct GuessBatch {
  model::CachedBatch batch;
  std::vector<std::int32_t> from;  ///< The row of the pass, for each row.
  std::vector<std::int32_t> next;  ///< The token after it, for each row.
  std::vector<std::int32_t> rows;  ///< Of these logits are wanted.
};

/// What computes.
class Forward {
 public:
  virtual ~Forward() = default;
  /// Copies whole pages, in order.
  virtual void copy_pages(std::span<const PageCopy> copies) = 0;
  /// Copies states, in order; nothing to do for a model without.
  virtual void copy_states(std::span<const StateCopy>) {}
  /// Runs the batch, writes its KV entries and gives the logits of `rows`: [rows, logit_stride], valid until the next
  /// call.
  [[nodiscard]] virtual Result<std::span<const float>> run(const model::CachedBatch& batch,
                                                           std::span<const std::int32_t> rows) = 0;
  /// The same of the tokens one further. Not called unless CoreOptions::drafts.
  [[nodiscard]] virtual Result<std::span<const float>> guess(const GuessBatch&) { return std::span<const float>{}; }
};

/// Decodes the text of one completion token by token; made by TextCodec.
class TextStream {
 public:
  virtual ~TextStream() = default;
  [[nodiscard]] virtual std::string push(std::int32_t id) = 0;
};

/// What the engine needs of a tokenizer.
class TextCodec {
 public:
  virtual ~TextCodec() = default;
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  [[nodiscard]] virtual std::unique_ptr<TextStream> stream() const = 0;
};

/// Sizes the core has to know.
struct CoreOptions {
  SchedulerOptions scheduler;
  int vocabulary = 0;    ///< Ids below this exist.
  int logit_stride = 0;  ///< Floats from one row of logits to the next, at least `vocabulary`.
  int context_tokens = 0;
  int waiting_max = 8192;
  double operations_per_token = 0;  ///< Of the forward pass.
  bool drafts = false;              ///< Forward::guess works.
  kernels::Where sampling = kernels::Where::kHost;  ///< EngineOptions::sampling.
};

/// Runs body(), a forward pass of `rows` tokens and what follows it. A pass of fewer operations takes about as long as
/// waking a thread and stays on one; a larger one is a team's (kernels/team.h).
template <class F>
void run_pass(const CoreOptions& options, std::int64_t rows, F&& body) {
  constexpr double kTeamOperations = 1e7;
  if (static_cast<double>(rows) * options.operations_per_token >= kTeamOperations) {
    kernels::with_team(body);
  } else {
    body();
  }
}

/// See Engine for the meaning of the calls.
class EngineCore {
 public:
  EngineCore(Forward& forward, const TextCodec* text, const CoreOptions& options, PolicyVersion version);

  [[nodiscard]] Status submit(Request request);
  StepReport step();
  [[nodiscard]] bool idle() const { return by_id_.empty() && ended_early_.empty(); }
  [[nodiscard]] Result<Completion> abort(SampleId id);
  [[nodiscard]] const Completion* peek(SampleId id) const;
  std::vector<Completion> abort_group(std::uint64_t group);
  std::vector<Completion> abort_all();
  void weights_changed(PolicyVersion version, OnUpdate mode);
  [[nodiscard]] PolicyVersion version() const { return version_; }
  [[nodiscard]] EngineStats stats() const;
  [[nodiscard]] const Scheduler& scheduler() const { return scheduler_; }

 private:
  struct Active {
    SharedPrompt prompt;
    SamplingParams sampling;
    Completion completion;
    Rng rng{0, RngStream::kSampling};
    std::int32_t tokens_max = 0;         // of the completion
    std::uint64_t first_position = 0;    // in the sample's random numbers
    std::unique_ptr<TextStream> stream;  // only with stop strings
    std::optional<StopMatcher> matcher;
    std::optional<std::size_t> cut;  // where the stop string begins
    std::int32_t draft = -1;         // the guess that the next work checks
  };

  [[nodiscard]] Status check_request(const Request& request) const;
  [[nodiscard]] std::int32_t completion_tokens_max(const Request& request) const;
  [[nodiscard]] static std::optional<Finish> ended(Active& active);
  void finish(Active& active, Finish why) const;
  Completion take(std::int32_t slot, Finish why, std::string error = {});
  void fill_batch(std::span<const Work> work);
  void run_work(std::span<const Work> work, StepReport& report);
  void apply(std::span<const Work> work, std::span<const float> logits, StepReport& report);
  void take_tokens(const Work& work, std::span<const Draw> draws, std::span<const Sampled> sampled, StepReport& report);
  void guess(std::span<const Work> work);
  void fill_guesses(std::span<const Work> work);
  std::optional<std::string> append(const Work& work, const Draw& draw, const Sampled& sampled);

  Forward& forward_;
  const TextCodec* text_;
  CoreOptions options_;
  PolicyVersion version_;
  Scheduler scheduler_;
  Sampler sampler_;
  std::vector<std::unique_ptr<Active>> active_;  // by slot
  std::map<SampleId, std::int32_t> by_id_;
  std::vector<Completion> ended_early_;  // their prefixes were complete when they were submitted
  model::CachedBatch batch_;
  std::vector<std::int32_t> rows_;
  std::vector<Draw> draws_;
  GuessBatch guesses_;
  std::vector<std::int32_t> guessing_;  // slots of guesses_.rows
  EngineStats stats_;
};

}  // namespace troupe::generate
