/// @file
/// Generation: requests in, completions out, one step of the whole batch at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "generate/options.h"
#include "generate/request.h"
#include "generate/stats.h"

namespace troupe::model {
class Model;
}
namespace troupe::data {
class Tokenizer;
}

namespace troupe::generate {

/// A continuous-batching engine over a paged KV cache.
///
/// Ownership: `model` and `tokenizer` outlive the engine; the model's parameters change only between steps, followed by
/// weights_changed(). Blocking: step() computes; everything else is cheap except score(). One thread at a time.
/// Determinism: a completion depends on (seed, id, prompt, sampling, weights) only: not on what else is in the batch,
/// on chunking, preemption, sharing of prompts, abort and continuation, or on the engine.
class Engine {
 public:
  /// `tokenizer` may be null: completions then have no text and stop strings are refused. `version` names the weights
  /// the model holds.
  Engine(model::Model& model, const data::Tokenizer* tokenizer, EngineOptions options, PolicyVersion version = {});
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  /// Queues a request. Errors: kInvalidArgument (empty prompt, id outside the vocabulary, prompt or completion longer
  /// than the context or the KV cache, bad sampling value), kAlreadyExists (id), kResourceExhausted (waiting_max).
  [[nodiscard]] Status submit(Request request);
  /// One forward pass of everything that is due. Does nothing when idle. A request that fails is among the finished
  /// with kError.
  StepReport step();
  /// True when a step would do nothing.
  [[nodiscard]] bool idle() const;

  /// What a request has sampled so far (no text yet); null when the engine does not hold it. Valid until the next step.
  [[nodiscard]] const Completion* peek(SampleId id) const;
  /// Takes a request out, with what it sampled so far. Errors: kNotFound (never submitted, or already finished).
  [[nodiscard]] Result<Completion> abort(SampleId id);
  /// All samples of a group; empty when there are none.
  std::vector<Completion> abort_group(std::uint64_t group);
  std::vector<Completion> abort_all();

  /// The model's parameters are now those of `version`. KV entries of other weights are never used for a request that
  /// was not running, whatever `mode`. Tells the model too (Model::weights_changed).
  void weights_changed(PolicyVersion version, OnUpdate mode);
  void weights_changed(PolicyVersion version);
  [[nodiscard]] PolicyVersion version() const;

  /// Log-probs of ids[prompt_len, end) at `temperature` over the whole vocabulary, through the generation forward: in
  /// prefill chunks, or token by token. Running requests are not disturbed (own KV pages). Errors: kInvalidArgument,
  /// kInternal (the forward threw).
  [[nodiscard]] Result<std::vector<float>> score(std::span<const std::int32_t> ids, std::int32_t prompt_len,
                                                 double temperature, bool decode_path);
  /// The same for several sequences, side by side. Memory: their KV pages, beside those of the running requests.
  [[nodiscard]] Result<std::vector<std::vector<float>>> score(std::span<const ScoreRequest> requests,
                                                              double temperature, bool decode_path);

  [[nodiscard]] EngineStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::generate
