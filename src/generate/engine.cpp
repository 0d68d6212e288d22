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

constexpr std::int32_t kScoreRows = 64;  // logits kept at once by score()

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
  ModelForward(model::Model& model, int pages, int page_tokens)
      : model_(&model), cache_(model.spec(), pages, page_tokens) {}

  void copy_pages(std::span<const PageCopy> copies) override {
    for (const PageCopy& copy : copies) cache_.copy_page(copy.from, copy.to);
  }

  Result<std::span<const float>> run(const model::CachedBatch& batch, std::span<const std::int32_t> rows) override {
    try {
      const at::Tensor hidden = model_->forward(batch, cache_);
      if (rows.empty()) return std::span<const float>{};
      logits_ = model_->logits(gather(hidden, rows));
      return std::span<const float>(logits_.const_data_ptr<float>(), static_cast<std::size_t>(logits_.numel()));
    } catch (const std::exception& e) {
      const std::string what = e.what();
      return fail(ErrorCode::kInternal, "the forward pass failed: " + what.substr(0, what.find('\n')));
    }
  }

 private:
  static at::Tensor gather(const at::Tensor& hidden, std::span<const std::int32_t> rows) {
    if (static_cast<std::int64_t>(rows.size()) == hidden.size(0)) return hidden;  // every segment is one decoded token
    at::Tensor picked = hidden.new_empty({static_cast<std::int64_t>(rows.size()), hidden.size(1)});
    const auto width = static_cast<std::size_t>(hidden.size(1));
    const float* from = hidden.const_data_ptr<float>();
    float* to = picked.mutable_data_ptr<float>();
    for (const std::int32_t row : rows) to = std::copy_n(from + static_cast<std::size_t>(row) * width, width, to);
    return picked;
  }

  model::Model* model_;
  model::KvCache cache_;
  at::Tensor logits_;
};

int pages_of(const model::ModelSpec& spec, const EngineOptions& options) {
  if (options.kv_pages > 0) return options.kv_pages;
  const auto page = static_cast<std::uint64_t>(model::KvCache::bytes_per_page(spec, options.page_tokens));
  return static_cast<int>(std::clamp<std::uint64_t>(options.kv_memory.count / page, 1, 1u << 30));
}

CoreOptions core_options(const model::ModelSpec& spec, const EngineOptions& options) {
  CoreOptions core;
  core.scheduler = {pages_of(spec, options), options.page_tokens, options.sequences_max, options.prefill_tokens,
                    options.cached_prompts_max};
  core.vocabulary = static_cast<int>(spec.used_vocab());
  core.logit_stride = static_cast<int>(spec.vocab_size);
  core.context_tokens = options.context_tokens > 0 ? options.context_tokens : static_cast<int>(spec.context);
  core.waiting_max = options.waiting_max;
  return core;
}

}  // namespace

struct Engine::Impl {
  Impl(model::Model& m, const data::Tokenizer* tokenizer, EngineOptions o, PolicyVersion version)
      : model(m),
        options(o),
        sizes(core_options(m.spec(), o)),
        forward(m, sizes.scheduler.pages, o.page_tokens),
        codec(tokenizer == nullptr ? nullptr : std::make_unique<TokenizerCodec>(*tokenizer)),
        core(forward, codec.get(), sizes, version) {}

  // Rows of one sequence, at most prefill_tokens at a time; appends the log-probs of the tokens after rows
  // [scored_from, ...).
  Status score_chunk(Forward& pass, std::span<const std::int32_t> ids, std::int32_t begin, std::int32_t end,
                     std::int32_t scored_from, float temperature, std::vector<float>& out) const;

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

Status Engine::Impl::score_chunk(Forward& pass, std::span<const std::int32_t> ids, std::int32_t begin, std::int32_t end,
                                 std::int32_t scored_from, float temperature, std::vector<float>& out) const {
  model::CachedBatch batch;
  model::KvSegment segment{0, end - begin, begin, {}};
  for (std::int32_t page = 0; page * options.page_tokens < end; ++page) segment.pages.push_back(page);
  batch.segments.push_back(std::move(segment));
  std::vector<std::int32_t> rows;
  for (std::int32_t t = begin; t < end; ++t) {
    batch.ids.push_back(ids[static_cast<std::size_t>(t)]);
    batch.positions.push_back(t);
    if (t >= scored_from && t + 1 < static_cast<std::int32_t>(ids.size())) rows.push_back(t - begin);
  }
  TROUPE_TRY(const auto logits, pass.run(batch, rows));
  if (rows.empty()) return {};
  const std::size_t first = out.size();
  out.resize(first + rows.size());
  kernels::LogprobForward args;
  args.logits = logits.data();
  args.targets = ids.data() + begin + rows.front() + 1;  // scored rows are consecutive
  args.logprob = out.data() + first;
  args.rows = static_cast<std::int64_t>(rows.size());
  args.vocab = sizes.vocabulary;
  args.ldl = sizes.logit_stride;
  args.temperature = temperature;
  kernels::logprob_forward(args);
  return {};
}

Result<std::vector<float>> Engine::score(std::span<const std::int32_t> ids, std::int32_t prompt_len, double temperature,
                                         bool decode_path) {
  const auto tokens = static_cast<std::int32_t>(ids.size());
  if (prompt_len < 1 || prompt_len > tokens || tokens > impl_->sizes.context_tokens)
    return fail(ErrorCode::kInvalidArgument, "cannot score " + std::to_string(tokens) + " tokens with a prompt of " +
                                                 std::to_string(prompt_len) + " in a context of " +
                                                 std::to_string(impl_->sizes.context_tokens));
  if (!(temperature > 0))
    return fail(ErrorCode::kInvalidArgument, "cannot score at temperature " + std::to_string(temperature));
  for (const std::int32_t id : ids)
    if (id < 0 || id >= impl_->sizes.vocabulary)
      return fail(ErrorCode::kInvalidArgument, "cannot score token id " + std::to_string(id) +
                                                   ": the vocabulary ends at " +
                                                   std::to_string(impl_->sizes.vocabulary - 1));
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(tokens - prompt_len));
  ModelForward pass(impl_->model, (tokens + impl_->options.page_tokens - 1) / impl_->options.page_tokens,
                    impl_->options.page_tokens);
  for (std::int32_t begin = 0; begin + 1 < tokens;) {  // the last token has no successor to score
    const std::int32_t decode_from = decode_path ? prompt_len : tokens;
    const std::int32_t chunk = begin >= decode_from     ? 1
                               : begin < prompt_len - 1 ? impl_->options.prefill_tokens
                                                        : kScoreRows;
    std::int32_t end = std::min(begin + chunk, tokens);
    for (const std::int32_t edge : {prompt_len - 1, decode_from})
      if (begin < edge) end = std::min(end, edge);
    TROUPE_TRY_STATUS(impl_->score_chunk(pass, ids, begin, end, prompt_len - 1, static_cast<float>(temperature), out));
    begin = end;
  }
  return out;
}

}  // namespace troupe::generate
