#include "generate/engine.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "data/tokenizer.h"
#include "generate/core.h"
#include "kernels/logprob.h"
#include "model/kv_cache.h"
#include "model/model.h"

namespace troupe::generate {
namespace {

constexpr std::int32_t kScoreRows = 64;  // logits of a sequence kept at once by score()

class TokenizerStream final : public TextStream {
 public:
  explicit TokenizerStream(const data::Tokenizer& tokenizer) : decoder_(tokenizer, true) {}
  std::string push(std::int32_t id) override { return decoder_.push(id); }

 private:
  data::StreamDecoder decoder_;
};

class TokenizerCodec final : public TextCodec {
 public:
  explicit TokenizerCodec(const data::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string decode(std::span<const std::int32_t> ids) const override { return tokenizer_.decode(ids, true); }
  std::unique_ptr<TextStream> stream() const override { return std::make_unique<TokenizerStream>(tokenizer_); }

 private:
  const data::Tokenizer& tokenizer_;
};

class ModelForward final : public Forward {
 public:
  ModelForward(model::Model& model, int pages, int page_tokens, int states, bool drafts = false)
      : model_(&model), cache_(model.spec(), pages, page_tokens, states, drafts, model.precision()), drafts_(drafts) {}

  void copy_pages(std::span<const PageCopy> copies) override {
    for (const PageCopy& copy : copies) cache_.copy_page(copy.from, copy.to);
  }

  void copy_states(std::span<const StateCopy> copies) override {
    for (const StateCopy& copy : copies) cache_.copy_state(copy.from, copy.to, copy.tokens);
  }

  Result<std::span<const float>> run(const model::CachedBatch& batch, std::span<const std::int32_t> rows) override {
    return caught([&] {
      trace_ = {};
      return logits_of(model_->forward(batch, cache_, drafts_ ? &trace_ : nullptr), rows);
    });
  }

  Result<std::span<const float>> guess(const GuessBatch& guesses) override {
    return caught([&] {
      model::Trace trace;
      trace.last = gather(trace_.last, guesses.from);
      trace.normed = gather(trace_.normed, guesses.from);
      return logits_of(model_->predict_further(guesses.batch, guesses.next, 0, trace, cache_), guesses.rows);
    });
  }

 private:
  template <class F>
  static Result<std::span<const float>> caught(F&& compute) {
    try {
      return compute();
    } catch (const std::exception& e) {
      const std::string what = e.what();
      return fail(ErrorCode::kInternal, "the forward pass failed: " + what.substr(0, what.find('\n')));
    }
  }

  std::span<const float> logits_of(const at::Tensor& hidden, std::span<const std::int32_t> rows) {
    if (rows.empty()) return {};
    logits_ = model_->logits(gather(hidden, rows));
    return {logits_.const_data_ptr<float>(), static_cast<std::size_t>(logits_.numel())};
  }

  static at::Tensor gather(const at::Tensor& hidden, std::span<const std::int32_t> rows) {
    if (static_cast<std::int64_t>(rows.size()) == hidden.size(0)) return hidden;  // all of them: each comes once, in order
    at::Tensor picked = hidden.new_empty({static_cast<std::int64_t>(rows.size()), hidden.size(1)});
    const auto width = static_cast<std::size_t>(hidden.size(1));
    const float* from = hidden.const_data_ptr<float>();
    float* to = picked.mutable_data_ptr<float>();
    for (const std::int32_t row : rows) to = std::copy_n(from + static_cast<std::size_t>(row) * width, width, to);
    return picked;
  }

  model::Model* model_;
  model::KvCache cache_;
  bool drafts_;
  model::Trace trace_;  // of the newest pass, when drafts_
  at::Tensor logits_;
};

bool drafts(const model::ModelSpec& spec, const EngineOptions& options) {
  return options.draft_tokens > 0 && model::can_guess(spec);
}

int pages_of(const model::Model& model, const EngineOptions& options) {
  if (options.kv_pages > 0) return options.kv_pages;
  const auto page = std::max<std::uint64_t>(
      static_cast<std::uint64_t>(model::KvCache::bytes_per_page(model.spec(), options.page_tokens,
                                                                drafts(model.spec(), options), model.precision())), 1);
  return static_cast<int>(std::clamp<std::uint64_t>(options.kv_memory.count / page, 1, 1u << 30));
}

CoreOptions core_options(const model::Model& model, const EngineOptions& options) {
  const model::ModelSpec& spec = model.spec();
  CoreOptions core;
  core.scheduler = {pages_of(model, options), options.page_tokens, options.sequences_max, options.prefill_tokens,
                    options.cached_prompts_max, options.reuse_prefixes, model::KvCache::bytes_per_state(spec) > 0};
  core.vocabulary = static_cast<int>(spec.used_vocab());
  core.logit_stride = static_cast<int>(spec.vocab_size);
  core.context_tokens = options.context_tokens > 0 ? options.context_tokens : static_cast<int>(spec.context);
  core.waiting_max = options.waiting_max;
  core.drafts = drafts(spec, options);
  core.sampling = options.sampling;
  core.operations_per_token = 2.0 * static_cast<double>(spec.parameter_count());
  return core;
}

}  // namespace

struct Engine::Impl {
  Impl(model::Model& m, const data::Tokenizer* tokenizer, EngineOptions o, PolicyVersion version)
      : model(m),
        options(o),
        sizes(core_options(m, o)),
        forward(m, sizes.scheduler.pages, o.page_tokens, sizes.scheduler.states(), sizes.drafts),
        codec(tokenizer == nullptr ? nullptr : std::make_unique<TokenizerCodec>(*tokenizer)),
        core(forward, codec.get(), sizes, version) {}

  [[nodiscard]] Status check_score(const ScoreRequest& request) const;
  // One pass; the log-probs of `targets` after `rows`.
  Result<std::vector<float>> run_scored(Forward& pass, const model::CachedBatch& batch, std::span<const std::int32_t> rows,
                                        std::span<const std::int32_t> targets, float temperature) const;

  model::Model& model;
  EngineOptions options;
  CoreOptions sizes;
  ModelForward forward;
  std::unique_ptr<TokenizerCodec> codec;
  EngineCore core;
};

Engine::Engine(model::Model& model, const data::Tokenizer* tokenizer, EngineOptions options, PolicyVersion version)
    : impl_(std::make_unique<Impl>(model, tokenizer, options, version)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Status Engine::submit(Request request) { return impl_->core.submit(std::move(request)); }
StepReport Engine::step() { return impl_->core.step(); }
bool Engine::idle() const { return impl_->core.idle(); }
const Completion* Engine::peek(SampleId id) const { return impl_->core.peek(id); }
Result<Completion> Engine::abort(SampleId id) { return impl_->core.abort(id); }
std::vector<Completion> Engine::abort_group(std::uint64_t group) { return impl_->core.abort_group(group); }
std::vector<Completion> Engine::abort_all() { return impl_->core.abort_all(); }

void Engine::weights_changed(PolicyVersion version, OnUpdate mode) {
  impl_->model.weights_changed();
  impl_->core.weights_changed(version, mode);
}
void Engine::weights_changed(PolicyVersion version) { weights_changed(version, impl_->options.on_update); }
PolicyVersion Engine::version() const { return impl_->core.version(); }
EngineStats Engine::stats() const { return impl_->core.stats(); }

namespace {

// One sequence on its way through score().
struct Scored {
  std::span<const std::int32_t> ids;
  std::int32_t prompt_len = 0;
  std::vector<std::int32_t> pages;
  std::int32_t done = 0;            // rows computed
  std::int32_t end = 0;             // rows computed after the pass under way
  std::int32_t rows = 0;            // of them scored by it
  std::vector<float> logprobs;

  [[nodiscard]] std::int32_t tokens() const { return static_cast<std::int32_t>(ids.size()); }
  [[nodiscard]] bool over() const { return done + 1 >= tokens(); }  // the last token has no successor to score
  // Where the next pass ends: in chunks through the prompt, then in blocks or one by one.
  [[nodiscard]] std::int32_t next(bool decode_path, std::int32_t prefill_tokens) const {
    const std::int32_t decode_from = decode_path ? prompt_len : tokens();
    const std::int32_t chunk = done >= decode_from ? 1 : done < prompt_len - 1 ? prefill_tokens : kScoreRows;
    std::int32_t to = std::min(done + chunk, tokens());
    for (const std::int32_t edge : {prompt_len - 1, decode_from})
      if (done < edge) to = std::min(to, edge);
    return to;
  }
};

}  // namespace

Status Engine::Impl::check_score(const ScoreRequest& request) const {
  const auto tokens = static_cast<std::int32_t>(request.ids.size());
  if (request.prompt_len < 1 || request.prompt_len > tokens || tokens > sizes.context_tokens)
    return fail(ErrorCode::kInvalidArgument, "cannot score " + std::to_string(tokens) + " tokens with a prompt of " +
                                                 std::to_string(request.prompt_len) + " in a context of " +
                                                 std::to_string(sizes.context_tokens));
  for (const std::int32_t id : request.ids)
    if (id < 0 || id >= sizes.vocabulary)
      return fail(ErrorCode::kInvalidArgument, "cannot score token id " + std::to_string(id) +
                                                   ": the vocabulary ends at " + std::to_string(sizes.vocabulary - 1));
  return {};
}

Result<std::vector<std::vector<float>>> Engine::score(std::span<const ScoreRequest> requests, double temperature,
                                                      bool decode_path) {
  if (!(temperature > 0))
    return fail(ErrorCode::kInvalidArgument, "cannot score at temperature " + std::to_string(temperature));
  std::vector<Scored> all;
  std::int32_t pages = 0;
  for (const ScoreRequest& request : requests) {
    TROUPE_TRY_STATUS(impl_->check_score(request));
    Scored& one = all.emplace_back(Scored{request.ids, request.prompt_len, {}, 0, 0, 0, {}});
    for (std::int32_t t = 0; t < one.tokens(); t += impl_->options.page_tokens) one.pages.push_back(pages++);
  }
  ModelForward pass(impl_->model, std::max(pages, 1), impl_->options.page_tokens,
                    static_cast<int>(std::max<std::size_t>(all.size(), 1)));
  for (;;) {
    model::CachedBatch batch;
    std::vector<std::int32_t> rows, targets;
    for (Scored& one : all) {
      one.end = one.over() ? one.done : one.next(decode_path, impl_->options.prefill_tokens);
      one.rows = 0;
      if (one.end == one.done) continue;
      const auto begin = static_cast<std::int32_t>(batch.ids.size());
      for (std::int32_t t = one.done; t < one.end; ++t) {
        if (t >= one.prompt_len - 1 && t + 1 < one.tokens()) {
          rows.push_back(static_cast<std::int32_t>(batch.ids.size()));
          targets.push_back(one.ids[static_cast<std::size_t>(t) + 1]);
          ++one.rows;
        }
        batch.ids.push_back(one.ids[static_cast<std::size_t>(t)]);
        batch.positions.push_back(t);
      }
      const auto used = (one.end + impl_->options.page_tokens - 1) / impl_->options.page_tokens;
      batch.segments.push_back({begin, static_cast<std::int32_t>(batch.ids.size()), one.done,
                                {one.pages.begin(), one.pages.begin() + used},
                                static_cast<std::int32_t>(&one - all.data())});
    }
    if (batch.ids.empty()) break;
    Result<std::vector<float>> scored;
    run_pass(impl_->sizes, static_cast<std::int64_t>(batch.ids.size()), [&] {
      scored = impl_->run_scored(pass, batch, rows, targets, static_cast<float>(temperature));
    });
    TROUPE_TRY(const auto scores, std::move(scored));
    auto next = scores.begin();
    for (Scored& one : all) {
      one.logprobs.insert(one.logprobs.end(), next, next + one.rows);
      next += one.rows;
      one.done = one.end;
    }
  }
  std::vector<std::vector<float>> out;
  for (Scored& one : all) out.push_back(std::move(one.logprobs));
  return out;
}

Result<std::vector<float>> Engine::Impl::run_scored(Forward& pass, const model::CachedBatch& batch,
                                                    std::span<const std::int32_t> rows,
                                                    std::span<const std::int32_t> targets, float temperature) const {
  TROUPE_TRY(const auto logits, pass.run(batch, rows));
  std::vector<float> logprobs(rows.size());
  if (rows.empty()) return logprobs;
  kernels::LogprobForward args;
  args.logits = logits.data();
  args.targets = targets.data();
  args.logprob = logprobs.data();
  args.rows = static_cast<std::int64_t>(rows.size());
  args.vocab = sizes.vocabulary;
  args.ldl = sizes.logit_stride;
  args.temperature = temperature;
  kernels::logprob_forward(args);
  return logprobs;
}

Result<std::vector<float>> Engine::score(std::span<const std::int32_t> ids, std::int32_t prompt_len, double temperature,
                                         bool decode_path) {
  const ScoreRequest request{ids, prompt_len};
  TROUPE_TRY(auto scores, score(std::span(&request, 1), temperature, decode_path));
  return std::move(scores.front());
}

}  // namespace troupe::generate
