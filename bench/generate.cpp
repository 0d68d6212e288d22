// generate: the engine alone, random weights, nothing stops early.
#include <ATen/Parallel.h>

#include "bench/engine_run.h"
#include "bench/peer.h"
#include "bench/registry.h"
#include "bench/shape.h"

namespace troupe::bench {
namespace {

constexpr int kVocabulary = 4096, kPrompt = 64, kNew = 128, kLongPrompt = 512;

struct Load {
  int batch = 1;
  int prompt = kPrompt;
  int fresh = kNew;
};

struct Took {
  double seconds = 0, busy = 0;
};

Took mean(Took a, Took b) { return {(a.seconds + b.seconds) / 2, (a.busy + b.busy) / 2}; }

Result<Took> measure_once(generate::Engine& engine, std::uint64_t salt, const Load& load, int threads) {
  std::vector<generate::Request> requests;
  for (int i = 0; i < load.batch; ++i) {
    requests.push_back(random_request(salt, i, kVocabulary, load.prompt, load.fresh));
    requests.back().seed = 1;
  }
  const Stopwatch watch;
  TROUPE_TRY_STATUS(run_to_end(engine, std::move(requests)));
  return Took{watch.seconds(), watch.busy(threads)};
}

// Medians over the repeats; the first, unmeasured one packs the weights and touches the cache.
Result<Took> measure(generate::Engine& engine, const Load& load, int repeats, int threads) {
  static std::uint64_t salt = 1;
  std::vector<double> took, busy;
  for (int i = 0; i <= repeats; ++i) {
    TROUPE_TRY(const Took once, measure_once(engine, salt++, load, threads));
    if (i > 0) took.push_back(once.seconds), busy.push_back(once.busy);
  }
  return Took{median(took), median(busy)};
}

// Operations of a forward pass over `tokens` rows at a mean of `keys` visible keys: 2 per weight, 4 hd per head and
// key.
double operations(const model::ModelSpec& spec, double tokens, double keys) {
  double sum = 2.0 * static_cast<double>(spec.parameter_count()) * tokens;  // the tied head stands for the embedding
  for (const auto& layer : spec.layers)
    sum += 4.0 * static_cast<double>(layer.attention.heads * layer.attention.head_dim) * keys * tokens;
  return sum;
}

}  // namespace

namespace {

// Figures of one precision.
Status run_precision(Context& context, kernels::Precision precision) {
  TROUPE_TRY(const auto spec, shape_spec());
  model::Model model = model::Model::create(spec, 1), not_invariant = model::Model::create(spec, 1);
  for (model::Model* one : {&model, &not_invariant}) one->set_precision(precision);
  not_invariant.set_backends(kNotInvariant);
  const int repeats = context.repeats(5);
  const auto add = [&](const std::string& name, double tokens, Took took, double ops, std::optional<Peer> peer,
                       const Load& load) {
    Figure figure{"generate." + name + dtype_suffix(precision), tokens / took.seconds, "tok/s", std::move(peer),
                  shape_conditions(context.threads(), precision)};
    figure.conditions.update({{"batch", load.batch},
                              {"prompt", load.prompt},
                              {"new", load.fresh},
                              {"repeats", repeats},
                              {"gflops", ops / took.seconds * 1e-9},
                              {"busy", took.busy}});
    context.add(std::move(figure));
  };
  for (const int batch : {1, 16}) {
    const std::string suffix = "_batch" + std::to_string(batch);
    const Load whole{batch, kPrompt, kNew}, first{batch, kLongPrompt, 1};
    generate::EngineOptions options;
    options.kv_memory = Bytes{512ull << 20};
    generate::Engine engine(model, nullptr, options);
    TROUPE_TRY(Took took, measure(engine, whole, repeats, context.threads()));
    TROUPE_TRY(Took took_first, measure(engine, first, repeats, context.threads()));
    const auto peer_at = [&](const Load& load) {
      return run_peer(context, "generate_tps.py",
                      {"--batch", std::to_string(batch), "--prompt", std::to_string(load.prompt), "--new",
                       std::to_string(load.fresh), "--dtype", dtype_name(precision), "--threads",
                       std::to_string(context.threads()), "--repeats", std::to_string(repeats)});
    };
    const auto peer = peer_at(whole), peer_first = peer_at(first);
    // Once more after the peers: a machine that is shared changes its speed from minute to minute.
    TROUPE_TRY(const Took again, measure(engine, whole, repeats, context.threads()));
    TROUPE_TRY(const Took again_first, measure(engine, first, repeats, context.threads()));
    took = mean(took, again), took_first = mean(took_first, again_first);
    const double rows = batch * (kPrompt + kNew - 1.0);
    add("tokens" + suffix, batch * kNew, took, operations(spec, rows, (kPrompt + kNew) / 2.0),
        peer_of(peer, "new_tok_s"), whole);
    generate::Engine beside(not_invariant, nullptr, options);
    TROUPE_TRY(const Took took_beside, measure(beside, whole, repeats, context.threads()));
    add("invariant" + suffix, batch * kNew, took, operations(spec, rows, (kPrompt + kNew) / 2.0),
        Peer{kNotInvariantName, batch * kNew / took_beside.seconds}, whole);
    add("prefill" + suffix, batch * kLongPrompt, took_first, operations(spec, batch * kLongPrompt, kLongPrompt / 2.0),
        peer_of(peer_first, "prompt_tok_s"), first);
  }
  return {};
}

}  // namespace

Status run_generate(Context& context) {
  at::set_num_threads(context.threads());
  for (const kernels::Precision precision : kPrecisions) TROUPE_TRY_STATUS(run_precision(context, precision));
  return {};
}

}  // namespace troupe::bench
