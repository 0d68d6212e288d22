#include "generate/core.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace troupe::generate {
namespace {

auto refuse(const Request& request, std::string why) {
  return fail(ErrorCode::kInvalidArgument, "sample " + to_string(request.id) + ": " + std::move(why));
}

Status check_ids(const Request& request, std::span<const std::int32_t> ids, std::string_view what, int vocabulary) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocabulary) continue;
    return refuse(request, std::string(what) + " token " + std::to_string(i) + " is " + std::to_string(ids[i]) +
                               ", but the model's vocabulary has ids 0 to " + std::to_string(vocabulary - 1) +
                               "; tokenizer and model do not belong together");
  }
  return {};
}

}  // namespace

EngineCore::EngineCore(Forward& forward, const TextCodec* text, const CoreOptions& options, PolicyVersion version)
    : forward_(forward), text_(text), options_(options), version_(version), scheduler_(options.scheduler), sampler_(options.sampling) {
  TROUPE_CHECK(options.vocabulary >= 1 && options.logit_stride >= options.vocabulary, "logits cover the vocabulary");
  scheduler_.weights_changed(version, OnUpdate::kKeepKv);
}

std::int32_t EngineCore::completion_tokens_max(const Request& request) const {
  return std::min(request.sampling.max_new_tokens,
                  options_.context_tokens - static_cast<std::int32_t>(request.prompt.size()));
}

Status EngineCore::check_request(const Request& request) const {
  if (auto status = check(request.sampling); !status) return refuse(request, status.error().message);
  if (request.prompt.empty()) return refuse(request, "the prompt is empty");
  const Prefix& prefix = request.prefix;
  if (prefix.logprobs.size() != prefix.ids.size() || prefix.versions.size() != prefix.ids.size())
    return refuse(request, "the prefix has " + std::to_string(prefix.ids.size()) + " ids, but " +
                               std::to_string(prefix.logprobs.size()) + " log-probs and " +
                               std::to_string(prefix.versions.size()) + " versions");
  TROUPE_TRY_STATUS(check_ids(request, request.prompt, "prompt", options_.vocabulary));
  TROUPE_TRY_STATUS(check_ids(request, prefix.ids, "prefix", options_.vocabulary));
  if (!request.sampling.stop_strings.empty() && text_ == nullptr)
    return refuse(request, "stop strings need a tokenizer, and there is none");

  const auto prompt_tokens = request.prompt.size();
  if (prompt_tokens >= static_cast<std::size_t>(options_.context_tokens))
    return refuse(request, "the prompt has " + std::to_string(prompt_tokens) + " tokens, but the context holds " +
                               std::to_string(options_.context_tokens) +
                               " with the completion; shorten the prompt or raise context_tokens");
  const std::int32_t longest = static_cast<std::int32_t>(prompt_tokens) + completion_tokens_max(request);
  const int pages = scheduler_.pool().pages();
  if (scheduler_.pages_for(longest) > pages)
    return refuse(request, "a prompt of " + std::to_string(prompt_tokens) + " tokens and up to " +
                               std::to_string(completion_tokens_max(request)) + " new ones need " +
                               std::to_string(scheduler_.pages_for(longest)) + " pages of KV cache, but there are " +
                               std::to_string(pages) + "; raise kv_memory or lower max_new_tokens");
  if (by_id_.contains(request.id))
    return fail(ErrorCode::kAlreadyExists, "sample " + to_string(request.id) + " is already in the engine");
  if (scheduler_.waiting() >= options_.waiting_max)
    return fail(ErrorCode::kResourceExhausted, "sample " + to_string(request.id) + ": " +
                                                   std::to_string(scheduler_.waiting()) +
                                                   " requests wait already (waiting_max)");
  return {};
}

Status EngineCore::submit(Request request) {
  TROUPE_TRY_STATUS(check_request(request));
  auto active = std::make_unique<Active>();
  const SampleId draws_as = request.randomness.value_or(request.id);
  active->rng = Rng(request.seed, RngStream::kSampling, draws_as.prompt, draws_as.sample);
  active->first_position = request.first_position;
  active->tokens_max = completion_tokens_max(request);
  Completion& completion = active->completion;
  completion.id = request.id;
  completion.group = request.group;
  completion.ids = std::move(request.prefix.ids);
  completion.logprobs = std::move(request.prefix.logprobs);
  completion.versions = std::move(request.prefix.versions);
  completion.kv_oldest = completion.ids.empty() ? version_ : request.prefix.kv_oldest;
  active->sampling = std::move(request.sampling);
  if (!active->sampling.stop_strings.empty()) {
    active->stream = text_->stream();
    active->matcher.emplace(active->sampling.stop_strings);
    for (const std::int32_t id : completion.ids)
      if (!active->cut) active->cut = active->matcher->push(active->stream->push(id));
  }
  if (const auto why = completion.ids.empty() ? std::nullopt : ended(*active)) {  // cut off just as it ended
    finish(*active, *why);
    ended_early_.push_back(std::move(completion));
    return {};
  }
  active->prompt = std::make_shared<const Prompt>(std::move(request.prompt));
  const auto tokens = static_cast<std::int32_t>(active->prompt->ids.size() + completion.ids.size());
  const std::int32_t slot = scheduler_.add(active->prompt, tokens);
  by_id_.emplace(completion.id, slot);
  if (static_cast<std::size_t>(slot) >= active_.size()) active_.resize(static_cast<std::size_t>(slot) + 1);
  active_[static_cast<std::size_t>(slot)] = std::move(active);
  return {};
}

StepReport EngineCore::step() {
  StepReport report;
  report.finished = std::exchange(ended_early_, {});
  stats_.completions += report.finished.size();
  if (by_id_.empty()) return report;
  const Plan& plan = scheduler_.plan();
  report.preempted = plan.preempted;
  if (!plan.copies.empty()) forward_.copy_pages(plan.copies);
  if (!plan.state_copies.empty()) forward_.copy_states(plan.state_copies);
  std::int64_t rows = 0;
  for (const Work& work : plan.work) rows += work.count;
  run_pass(options_, rows, [&] { run_work(plan.work, report); });
  ++stats_.steps;
  stats_.tokens_computed += static_cast<std::uint64_t>(report.tokens);
  stats_.tokens_sampled += static_cast<std::uint64_t>(report.sampled);
  return report;
}

void EngineCore::fill_batch(std::span<const Work> work) {
  batch_.ids.clear();
  batch_.positions.clear();
  batch_.segments.resize(work.size());
  rows_.clear();
  for (std::size_t i = 0; i < work.size(); ++i) {
    const Work& w = work[i];
    const Active& active = *active_[static_cast<std::size_t>(w.slot)];
    const auto& prompt = active.prompt->ids;
    const auto& completion = active.completion.ids;
    const auto prompt_tokens = static_cast<std::int32_t>(prompt.size());
    model::KvSegment& segment = batch_.segments[i];
    segment.begin = static_cast<std::int32_t>(batch_.ids.size());
    segment.end = segment.begin + w.count;
    segment.cached = w.begin;
    segment.state = scheduler_.state(w.slot);
    const auto pages = scheduler_.pages(w.slot);
    segment.pages.assign(pages.begin(), pages.end());
    const std::int32_t known = w.begin + w.count - w.drafts;
    for (std::int32_t t = w.begin; t < known; ++t)
      batch_.ids.push_back(t < prompt_tokens ? prompt[static_cast<std::size_t>(t)]
                                             : completion[static_cast<std::size_t>(t - prompt_tokens)]);
    if (w.drafts > 0) batch_.ids.push_back(active.draft);
    for (std::int32_t t = w.begin; t < w.begin + w.count; ++t) batch_.positions.push_back(t);
    for (std::int32_t back = w.drafts; w.samples && back >= 0; --back) rows_.push_back(segment.end - 1 - back);
  }
}

void EngineCore::run_work(std::span<const Work> work, StepReport& report) {
  fill_batch(work);
  auto logits = forward_.run(batch_, rows_);
  if (logits) {
    report.tokens += static_cast<int>(batch_.ids.size());
    apply(work, *logits, report);
    if (options_.drafts) guess(work);
    return;
  }
  if (work.size() == 1) {
    report.finished.push_back(take(work[0].slot, Finish::kError, std::move(logits).error().message));
    return;
  }
  for (const Work& w : work) run_work({&w, 1}, report);  // whoever made it fail, fails alone
}

void EngineCore::apply(std::span<const Work> work, std::span<const float> logits, StepReport& report) {
  draws_.clear();
  for (const Work& w : work) {
    const Active& active = *active_[static_cast<std::size_t>(w.slot)];
    const std::uint64_t position = active.first_position + active.completion.ids.size();
    for (std::int32_t ahead = 0; w.samples && ahead <= w.drafts; ++ahead) {
      const auto row = logits.subspan(draws_.size() * static_cast<std::size_t>(options_.logit_stride));
      draws_.push_back({row.first(static_cast<std::size_t>(options_.vocabulary)), &active.sampling,
                        active.rng.uniform_at(position + static_cast<std::uint64_t>(ahead))});
    }
  }
  const auto drawn = sampler_.sample(draws_);
  if (!drawn) {
    for (const Work& w : work) report.finished.push_back(take(w.slot, Finish::kError, drawn.error().message));
    return;
  }
  const std::span<const Sampled> sampled = *drawn;
  std::size_t next = 0;
  for (const Work& w : work) {
    const std::size_t count = w.samples ? static_cast<std::size_t>(1 + w.drafts) : 0;
    take_tokens(w, std::span(draws_).subspan(next, count), sampled.subspan(next, count), report);
    next += count;
  }
}

// The first token, and, when it is the one that was guessed, the one after it: both are what one by one would have given, bit for bit.
void EngineCore::take_tokens(const Work& work, std::span<const Draw> draws, std::span<const Sampled> sampled, StepReport& report) {
  Active& active = *active_[static_cast<std::size_t>(work.slot)];
  const std::int32_t draft = std::exchange(active.draft, -1);
  std::int32_t taken = 0;
  bool right = false;
  std::optional<Finish> why;
  for (std::size_t i = 0; i < sampled.size() && (i == 0 || (right && !why)); ++i) {
    const Sampled& token = sampled[i];
    if (auto error = append(work, draws[i], token)) {
      report.finished.push_back(take(work.slot, Finish::kError, std::move(*error)));
      return;
    }
    right = right || (work.drafts > 0 && token.id == draft);
    ++taken;
    ++report.sampled;
    why = ended(active);
  }
  stats_.drafts += static_cast<std::uint64_t>(work.drafts);
  stats_.drafts_accepted += right ? 1 : 0;
  scheduler_.advance(work, taken);
  if (why) report.finished.push_back(take(work.slot, *why));
}

// Guesses the token after the one that each sequence has just sampled. A pass that fails guesses nothing: nothing depends on it.
void EngineCore::guess(std::span<const Work> work) {
  fill_guesses(work);
  if (guesses_.batch.ids.empty()) return;
  const auto logits = forward_.guess(guesses_);
  if (!logits) return;
  draws_.clear();
  for (const std::int32_t slot : guessing_) {
    const Active& active = *active_[static_cast<std::size_t>(slot)];
    const auto row = logits->subspan(draws_.size() * static_cast<std::size_t>(options_.logit_stride));
    // With the random number of the token itself: where both distributions are alike, so are the tokens.
    draws_.push_back({row.first(static_cast<std::size_t>(options_.vocabulary)), &active.sampling,
                      active.rng.uniform_at(active.first_position + active.completion.ids.size())});
  }
  const auto drawn = sampler_.sample(draws_);
  if (!drawn) return;
  auto sampled = drawn->begin();
  for (const std::int32_t slot : guessing_) {
    const std::int32_t id = (sampled++)->id;
    active_[static_cast<std::size_t>(slot)]->draft = id;
    scheduler_.set_draft(slot, id >= 0 ? 1 : 0);
  }
}

// Every row whose next token is known by now.
void EngineCore::fill_guesses(std::span<const Work> work) {
  model::CachedBatch& batch = guesses_.batch;
  batch.ids.clear();
  batch.positions.clear();
  batch.segments.clear();
  guesses_.from.clear();
  guesses_.next.clear();
  guesses_.rows.clear();
  guessing_.clear();
  for (std::size_t i = 0; i < work.size(); ++i) {
    const Work& w = work[i];
    const Active* active = active_[static_cast<std::size_t>(w.slot)].get();
    if (active == nullptr) continue;  // it has ended
    const auto& prompt = active->prompt->ids;
    const auto& completion = active->completion.ids;
    const auto prompt_tokens = static_cast<std::int32_t>(prompt.size());
    const std::int32_t known = prompt_tokens + static_cast<std::int32_t>(completion.size());
    const std::int32_t end = std::min(w.begin + w.count, known - 1);
    model::KvSegment segment = batch_.segments[i];
    const std::int32_t first = segment.begin;
    segment.begin = static_cast<std::int32_t>(batch.ids.size());
    segment.end = segment.begin + end - w.begin;
    for (std::int32_t t = w.begin; t < end; ++t) {
      batch.ids.push_back(batch_.ids[static_cast<std::size_t>(first + t - w.begin)]);
      batch.positions.push_back(t);
      guesses_.from.push_back(first + t - w.begin);
      guesses_.next.push_back(t + 1 < prompt_tokens ? prompt[static_cast<std::size_t>(t + 1)]
                                                    : completion[static_cast<std::size_t>(t + 1 - prompt_tokens)]);
    }
    batch.segments.push_back(std::move(segment));
    const bool two_more = static_cast<std::int32_t>(completion.size()) + 2 <= active->tokens_max;
    if (w.samples && two_more) {
      guessing_.push_back(w.slot);
      guesses_.rows.push_back(batch.segments.back().end - 1);
    }
  }
}

std::optional<std::string> EngineCore::append(const Work& work, const Draw& draw, const Sampled& sampled) {
  Active& active = *active_[static_cast<std::size_t>(work.slot)];
  Completion& completion = active.completion;
  const std::size_t position = completion.ids.size();
  if (sampled.id < 0)
    return "sample " + to_string(completion.id) + ": the logits of token " + std::to_string(position) +
           " are not finite; the weights " + to_string(version_) + " have diverged";
  const PolicyVersion kv = scheduler_.kv_oldest(work.slot);
  completion.kv_oldest = position == 0 ? kv : std::min(completion.kv_oldest, kv);
  completion.ids.push_back(sampled.id);
  completion.logprobs.push_back(sampled.logprob);
  completion.versions.push_back(version_);
  if (active.sampling.alternatives >= 0)
    completion.alternatives.push_back(alternatives(draw.logits, active.sampling, sampled.id));
  if (active.matcher && !active.cut) {
    const auto& stops = active.sampling.stop_ids;
    const bool stop_id = std::find(stops.begin(), stops.end(), sampled.id) != stops.end();
    if (!stop_id) active.cut = active.matcher->push(active.stream->push(sampled.id));  // a stop id is no text
  }
  return std::nullopt;
}

std::optional<Finish> EngineCore::ended(Active& active) {
  const Completion& completion = active.completion;
  const auto& stops = active.sampling.stop_ids;
  if (active.cut || std::find(stops.begin(), stops.end(), completion.ids.back()) != stops.end()) return Finish::kStop;
  if (static_cast<std::int32_t>(completion.ids.size()) >= active.tokens_max) return Finish::kLength;
  return std::nullopt;
}

void EngineCore::finish(Active& active, Finish why) const {
  Completion& completion = active.completion;
  completion.finish = why;
  completion.text_tokens_kept = completion.ids.size();
  if (why == Finish::kStop && !active.cut) --completion.text_tokens_kept;  // the stop id
  if (text_ == nullptr) return;
  const std::span<const std::int32_t> ids(completion.ids);
  if (!active.cut) {
    completion.text = text_->decode(ids.first(completion.text_tokens_kept));
    completion.text_bytes_kept = completion.text.size();
    return;
  }
  completion.text = active.matcher->text().substr(0, *active.cut);
  for (;; --completion.text_tokens_kept) {  // the longest run of tokens whose text is all there
    const std::string kept = text_->decode(ids.first(completion.text_tokens_kept));
    completion.text_bytes_kept = kept.size();
    if (completion.text_tokens_kept == 0 || completion.text.starts_with(kept)) return;
  }
}

Completion EngineCore::take(std::int32_t slot, Finish why, std::string error) {
  auto active = std::move(active_[static_cast<std::size_t>(slot)]);
  scheduler_.remove(slot, active->completion.ids);
  by_id_.erase(active->completion.id);
  finish(*active, why);
  active->completion.error = std::move(error);
  (why == Finish::kError ? stats_.errors : why == Finish::kAborted ? stats_.aborted : stats_.completions) += 1;
  return std::move(active->completion);
}

const Completion* EngineCore::peek(SampleId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &active_[static_cast<std::size_t>(found->second)]->completion;
}

Result<Completion> EngineCore::abort(SampleId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return fail(ErrorCode::kNotFound, "sample " + to_string(id) + " is not in the engine");
  return take(found->second, Finish::kAborted);
}

std::vector<Completion> EngineCore::abort_group(std::uint64_t group) {
  std::vector<std::int32_t> slots;
  for (const auto& [id, slot] : by_id_)
    if (active_[static_cast<std::size_t>(slot)]->completion.group == group) slots.push_back(slot);
  std::vector<Completion> completions;
  for (const std::int32_t slot : slots) completions.push_back(take(slot, Finish::kAborted));
  return completions;
}

std::vector<Completion> EngineCore::abort_all() {
  std::vector<Completion> completions;
  while (!by_id_.empty()) completions.push_back(take(by_id_.begin()->second, Finish::kAborted));
  return completions;
}

void EngineCore::weights_changed(PolicyVersion version, OnUpdate mode) {
  version_ = version;
  scheduler_.weights_changed(version, mode);
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  stats.tokens_shared = scheduler_.tokens_shared();
  stats.preemptions = scheduler_.preemptions();
  stats.running = scheduler_.running();
  stats.waiting = scheduler_.waiting();
  stats.pages = scheduler_.pool().pages();
  stats.pages_used = scheduler_.pool().pages() - scheduler_.pool().free_pages();
  stats.cached_prompts = scheduler_.cached_prompts();
  return stats;
}

}  // namespace troupe::generate
