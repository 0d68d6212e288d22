// smollm2: a real model, SmolLM2-135M-Instruct, beside llama.cpp on the same weights in the same type.
#include <ATen/Parallel.h>

#include <filesystem>

#include "bench/engine_run.h"
#include "bench/peer.h"
#include "bench/registry.h"
#include "bench/shape.h"
#include "model/load.h"

namespace troupe::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kPrefill = 512, kNew = 128, kBatch = 16, kBatchPrompt = 64, kBatchNew = 96;

Result<fs::path> weights() {
  const fs::path folder = fs::path(TROUPE_SOURCE_DIR) / ".deps" / "models" / "smollm2-135m";
  std::error_code ignored;
  for (const auto& entry :
       fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink, ignored))
    if (entry.path().extension() == ".gguf") return fs::canonical(entry.path());
  return fail(ErrorCode::kNotFound, "the weights are not here: scripts/setup.sh --model models/smollm2-135m");
}

// Seconds until `batch` requests of their own random prompts have `fresh` tokens each.
Result<double> seconds_for(generate::Engine& engine, int vocabulary, int batch, int prompt, int fresh) {
  static std::uint64_t salt = 1;  // no prompt is found in the cache
  ++salt;
  std::vector<generate::Request> requests;
  for (int i = 0; i < batch; ++i) {
    requests.push_back(random_request(salt, i, vocabulary, prompt, fresh));
    requests.back().sampling.temperature = 0;
  }
  const Stopwatch watch;
  TROUPE_TRY_STATUS(run_to_end(engine, std::move(requests)));
  return watch.seconds();
}

struct Rates {
  double prefill = 0, decode = 0, batch = 0;  // tok/s
};

// Decoding: what `new` tokens take more than one does.
Result<Rates> measure(model::Model& model, int repeats) {
  generate::EngineOptions options;
  options.kv_memory = Bytes{512ull << 20};
  generate::Engine engine(model, nullptr, options);
  const int vocabulary = static_cast<int>(model.spec().used_vocab());
  std::vector<double> prefill, decode, batch;
  for (int i = 0; i <= repeats; ++i) {
    TROUPE_TRY(const double first, seconds_for(engine, vocabulary, 1, kPrefill, 1));
    TROUPE_TRY(const double one, seconds_for(engine, vocabulary, 1, 1, 1));
    TROUPE_TRY(const double many, seconds_for(engine, vocabulary, 1, 1, kNew));
    TROUPE_TRY(const double prompts, seconds_for(engine, vocabulary, kBatch, kBatchPrompt, 1));
    TROUPE_TRY(const double all, seconds_for(engine, vocabulary, kBatch, kBatchPrompt, kBatchNew));
    if (i == 0) continue;  // packs the weights
    prefill.push_back(kPrefill / first);
    decode.push_back((kNew - 1) / (many - one));
    batch.push_back(kBatch * (kBatchNew - 1) / (all - prompts));
  }
  return Rates{median(prefill), median(decode), median(batch)};
}

}  // namespace

Status run_smollm2(Context& context) {
  at::set_num_threads(context.threads());
  TROUPE_TRY(const fs::path file, weights());
  TROUPE_TRY(model::Model model, model::load_model(file));
  const int repeats = context.repeats(3);
  for (const kernels::Precision precision : kPrecisions) {
    model.set_precision(precision);
    TROUPE_TRY(const Rates rates, measure(model, repeats));
    const auto peer = run_peer(context, "llama_cpp.py",
                               {"--gguf", file.string(), "--dtype", dtype_name(precision), "--threads",
                                std::to_string(context.threads()), "--repeats", std::to_string(repeats)});
    const auto add = [&](const char* name, double value, const char* key, const char* work) {
      context.add({std::string("smollm2.") + name + "." + dtype_name(precision),
                   value,
                   "tok/s",
                   peer_of(peer, key),
                   {{"model", "SmolLM2-135M-Instruct"},
                    {"dtype", dtype_name(precision)},
                    {"work", work},
                    {"threads", context.threads()},
                    {"repeats", repeats}}});
    };
    add("prefill", rates.prefill, "prefill_tok_s", "512 tokens");
    add("decode_batch1", rates.decode, "decode_tok_s", "128 tokens from an empty context");
    add("decode_batch16", rates.batch, "batch_tok_s", "96 tokens after 64, each");
  }
  return {};
}

}  // namespace troupe::bench
