// train: forward, backward, clipping and AdamW on 8 sequences of 512 tokens.
#include <ATen/Parallel.h>

#include <algorithm>

#include "base/rng.h"
#include "bench/peer.h"
#include "bench/registry.h"
#include "bench/shape.h"
#include "train/trainer.h"

namespace troupe::bench {
namespace {

constexpr int kSequences = 8, kTokens = 512, kVocabulary = 4096;

// Every token but the last of a sequence predicts the next one.
train::MicroBatch random_batch() {
  Rng rng(1, RngStream::kTest);
  std::vector<std::vector<std::int32_t>> documents(kSequences);
  for (auto& document : documents)
    for (int t = 0; t < kTokens; ++t) document.push_back(static_cast<std::int32_t>(rng.below(kVocabulary)));
  train::MicroBatch batch;
  batch.batch = model::pack_documents(documents);
  for (int s = 0; s < kSequences; ++s)
    for (int t = 0; t + 1 < kTokens; ++t) {
      batch.rows.push_back(s * kTokens + t);
      batch.targets.push_back(documents[static_cast<std::size_t>(s)][static_cast<std::size_t>(t) + 1]);
    }
  return batch;
}

// Forward and backward: 6 operations per weight and token, 12 hd per head and visible key.
double operations(const model::ModelSpec& spec) {
  const double tokens = kSequences * kTokens;
  double sum = 6.0 * static_cast<double>(spec.parameter_count()) * tokens;
  for (const auto& layer : spec.layers)
    sum += 12.0 * static_cast<double>(layer.attention.heads * layer.attention.head_dim) * (kTokens / 2.0) * tokens;
  return sum;
}

struct Took {
  double seconds = 0, best = 0, busy = 0;
};

// Medians over the repeats; the first two steps pack weights and fill caches.
Result<Took> measure(kernels::Precision precision, int repeats, int threads, const tensor::Backends& backends = {}) {
  TROUPE_TRY(const auto spec, shape_spec());
  model::Model model = model::Model::create(spec, 1);
  model.set_precision(precision);
  model.set_backends(backends);
  optim::AdamWOptions optimizer;
  optimizer.lr = 1e-4;
  TROUPE_TRY(auto trainer, train::Trainer::create(model, optimizer, {}));
  const std::vector<train::MicroBatch> batches{random_batch()};
  const auto loss = [&](std::size_t, std::span<const float> logprob,
                        std::span<const float>) -> Result<std::vector<float>> {
    return std::vector<float>(logprob.size(), -1.0f / static_cast<float>(logprob.size()));
  };
  std::vector<double> took, busy;
  for (int i = 0; i < repeats + 2; ++i) {
    const Stopwatch watch;
    TROUPE_TRY_STATUS(trainer.step(batches, 1.0, loss).map([](const auto&) {}));
    if (i >= 2) took.push_back(watch.seconds()), busy.push_back(watch.busy(threads));
  }
  return Took{median(took), *std::min_element(took.begin(), took.end()), median(busy)};
}

}  // namespace

Status run_train(Context& context) {
  at::set_num_threads(context.threads());
  TROUPE_TRY(const auto spec, shape_spec());
  const int repeats = context.repeats(5);
  for (const kernels::Precision precision : kPrecisions) {
    TROUPE_TRY(Took took, measure(precision, repeats, context.threads()));
    TROUPE_TRY(const Took not_invariant, measure(precision, repeats, context.threads(), kNotInvariant));
    const std::vector<std::string> same_work{
        "--seq",   std::to_string(kTokens), "--batch",   std::to_string(kSequences),
        "--dtype", dtype_name(precision),   "--threads", std::to_string(context.threads()),
        "--steps", std::to_string(repeats)};
    const auto eager = run_peer(context, "train_tps.py", same_work);
    auto with_compile = same_work;
    with_compile.push_back("--compile");
    const auto compiled = run_peer(context, "train_tps.py", with_compile);
    // Once more after the peers: a machine that is shared changes its speed from minute to minute.
    TROUPE_TRY(const Took again, measure(precision, repeats, context.threads()));
    took = {(took.seconds + again.seconds) / 2, std::min(took.best, again.best), (took.busy + again.busy) / 2};
    const double tokens = kSequences * kTokens;
    const std::string suffix = dtype_suffix(precision);
    nlohmann::json conditions = shape_conditions(context.threads(), precision);
    conditions.update({{"batch", "8 x 512"},
                       {"repeats", repeats},
                       {"optimizer", "AdamW, clipping"},
                       {"busy", took.busy},
                       {"best_step_s", took.best}});
    context.add({"train.tokens" + suffix, tokens / took.seconds, "tok/s", peer_of(eager, "tok_s"), conditions});
    if (compiled)
      context.add({"train.tokens_vs_compiled" + suffix, tokens / took.seconds, "tok/s", peer_of(compiled, "tok_s"),
                   conditions});
    context.add({"train.invariant" + suffix, tokens / took.seconds, "tok/s",
                 Peer{kNotInvariantName, tokens / not_invariant.seconds}, conditions});
    context.add({"train.rate" + suffix, operations(spec) / took.seconds * 1e-9, "GFLOP/s", {}, conditions});
  }
  return {};
}

}  // namespace troupe::bench
