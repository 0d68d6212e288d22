#include "generate/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace troupe::generate {

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      pool_(options.pages),
      states_(options.states()),
      cache_(pool_, options.cached_prompts_max, options.stateful ? &states_ : nullptr) {
  TROUPE_CHECK(options.page_tokens >= 1 && options.sequences_max >= 1 && options.prefill_tokens >= 1,
               "scheduler sizes are at least 1");
}

std::int32_t Scheduler::add(SharedPrompt prompt, std::int32_t tokens) {
  TROUPE_CHECK(tokens >= 1 && pages_for(tokens) <= pool_.pages(), "a sequence must fit the pool");
  std::int32_t slot = static_cast<std::int32_t>(sequences_.size());
  if (free_slots_.empty()) {
    sequences_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  Sequence& sequence = at(slot);
  sequence.prompt = std::move(prompt);
  sequence.arrival = arrivals_++;
  sequence.tokens = tokens;
  sequence.computed = 0;
  enqueue(waiting_, slot);
  return slot;
}

void Scheduler::enqueue(std::vector<std::int32_t>& queue, std::int32_t slot) {
  const auto place = std::upper_bound(queue.begin(), queue.end(), slot,
                                      [this](std::int32_t a, std::int32_t b) { return at(a).arrival < at(b).arrival; });
  queue.insert(place, slot);
}

const Plan& Scheduler::plan() {
  plan_.work.clear();
  plan_.copies.clear();
  plan_.state_copies = std::exchange(snapshots_, {});
  plan_.preempted = 0;
  prefill_left_ = options_.prefill_tokens;
  for (std::size_t i = 0; i < running_.size(); ++i) schedule(running_[i]);  // preemption shortens the list from its end
  if (plan_.preempted == 0) admit();
  TROUPE_CHECK(!plan_.work.empty() || (running_.empty() && waiting_.empty()),
               "a step must do something while there is something to do");
  return plan_;
}

void Scheduler::schedule(std::int32_t slot) {
  Sequence& sequence = at(slot);
  std::int32_t count = sequence.tokens - sequence.computed;
  count = until_snapshot(sequence, count);
  if (count > 1 && !sequence.again) {  // prefill; its last token too, as the budget is for rows that come in bulk
    count = std::min(count, prefill_left_);
    if (count == 0) return;
    prefill_left_ -= count;
  }
  const std::int32_t end = sequence.computed + count;
  if (!make_writable(slot, end)) {
    preempt(slot);
    return;
  }
  const bool samples = end == sequence.tokens;
  std::int32_t drafts = samples ? sequence.draft : 0;
  const bool has_page = pages_for(end + drafts) <= static_cast<int>(sequence.pages.size());
  if (drafts > 0 && !has_page) {  // nobody gives way for a guess
    if (const auto page = pool_.allocate()) sequence.pages.push_back(*page);
    else drafts = 0;
  }
  plan_.work.push_back({slot, sequence.computed, count + drafts, samples, drafts});
}

std::int32_t Scheduler::until_snapshot(const Sequence& sequence, std::int32_t count) const {
  if (!options_.stateful || !sequence.shares) return count;
  const auto last = static_cast<std::int32_t>(sequence.prompt->ids.size()) - 1;
  return sequence.computed < last ? std::min(count, last - sequence.computed) : count;
}

bool Scheduler::make_writable(std::int32_t slot, std::int32_t tokens) {
  Sequence& sequence = at(slot);
  const auto first = static_cast<std::size_t>(sequence.computed / options_.page_tokens);
  while (first < sequence.pages.size() && pool_.references(sequence.pages[first]) > 1) {
    if (const auto page = pool_.allocate()) {
      plan_.copies.push_back({sequence.pages[first], *page});
      pool_.release(std::exchange(sequence.pages[first], *page));
    } else if (!reclaim(slot)) {
      return false;
    }
  }
  while (static_cast<int>(sequence.pages.size()) < pages_for(tokens)) {
    if (const auto page = pool_.allocate())
      sequence.pages.push_back(*page);
    else if (!reclaim(slot))
      return false;
  }
  return true;
}

bool Scheduler::reclaim(std::int32_t slot) {
  if (cache_.evict()) return true;
  if (running_.back() == slot) {
    TROUPE_CHECK(running_.size() > 1, "one sequence alone must fit the pool");
    return false;
  }
  preempt(running_.back());
  return true;
}

void Scheduler::preempt(std::int32_t slot) {
  TROUPE_CHECK(running_.back() == slot, "the youngest is preempted");
  running_.pop_back();
  release_pages(at(slot));
  enqueue(waiting_, slot);
  ++plan_.preempted;
  ++preemptions_;
}

void Scheduler::release_pages(Sequence& sequence) {
  for (const std::int32_t page : sequence.pages) pool_.release(page);
  sequence.pages.clear();
  if (sequence.state >= 0) states_.release(std::exchange(sequence.state, -1));
  sequence.computed = 0;
  sequence.draft = 0;
  sequence.again = sequence.shares = false;
}

void Scheduler::admit() {
  for (std::size_t i = 0; i < waiting_.size() && running() < options_.sequences_max && prefill_left_ > 0;) {
    const std::int32_t slot = waiting_[i];
    if (prompt_in_progress(*at(slot).prompt)) {  // will share soon
      ++i;
      continue;
    }
    if (!admit_one(slot)) return;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    enqueue(running_, slot);
    schedule(slot);
  }
}

bool Scheduler::prompt_in_progress(const Prompt& prompt) const {
  if (options_.cached_prompts_max == 0) return false;
  return std::any_of(running_.begin(), running_.end(), [&](std::int32_t slot) {
    const Sequence& other = sequences_[static_cast<std::size_t>(slot)];
    return other.shares && other.prompt->same_as(prompt);
  });
}

bool Scheduler::admit_one(std::int32_t slot) {
  Sequence& sequence = at(slot);
  PromptCache::Found kept = cache_.find(*sequence.prompt);
  bool whole_prompt = kept.prompt != nullptr;
  if (!whole_prompt && options_.reuse_prefixes) kept = cache_.find_longest(*sequence.prompt);
  const int whole = pages_for(sequence.tokens);
  const std::int32_t kept_tokens = kept.tokens - (options_.stateful ? 1 : 0);
  std::int32_t shared = std::max(std::min(kept_tokens, sequence.tokens - 1), 0);
  const Prompt* spared = shared > 0 ? kept.prompt : nullptr;
  int wanted = whole - shared / options_.page_tokens;  // a page that is shared in part is copied
  const int reserve = running();                       // every running sequence may need its next page soon
  if (pool_.free_pages() + cache_.evictable_pages(spared) < wanted + reserve) {
    if (!running_.empty()) return false;
    spared = nullptr;  // alone it fits without any kept prompt
    whole_prompt = false;
    shared = 0;
    wanted = whole;
  }
  while (pool_.free_pages() < wanted + reserve && cache_.evict(spared)) {
  }
  if (shared > 0) {
    const auto pages = static_cast<std::size_t>(pages_for(shared));
    sequence.pages.assign(kept.pages->begin(), kept.pages->begin() + static_cast<std::ptrdiff_t>(pages));
    for (const std::int32_t page : sequence.pages) pool_.retain(page);
    tokens_shared_ += static_cast<std::uint64_t>(shared);
  }
  if (options_.stateful) {
    sequence.state = states_.allocate().value();  // one for every sequence that can run
    if (shared > 0) plan_.state_copies.push_back({kept.state, sequence.state, shared});
  }
  sequence.computed = shared;
  sequence.kv_oldest = version_;
  sequence.shares = !whole_prompt;
  const bool fits = make_writable(slot, sequence.tokens);
  TROUPE_CHECK(fits, "an admitted sequence has its pages");
  return true;
}

void Scheduler::advance(const Work& work, std::int32_t sampled) {
  Sequence& sequence = at(work.slot);
  TROUPE_CHECK(sequence.prompt != nullptr && sequence.computed == work.begin, "work is reported once, in order");
  TROUPE_CHECK(sampled <= (work.samples ? 1 + work.drafts : 0), "a row gives at most one token");
  const std::int32_t wrong = work.drafts - std::max(sampled - 1, 0);
  sequence.again = wrong > 0 && options_.stateful;
  if (!sequence.again) sequence.computed += work.count - wrong;
  sequence.tokens += sampled;
  sequence.draft = 0;
  const auto prompt_tokens = static_cast<std::int32_t>(sequence.prompt->ids.size());
  if (!sequence.shares || sequence.computed < prompt_tokens) return;
  sequence.shares = false;
  const std::int32_t snapshot =
      cache_.insert(sequence.prompt, std::span(sequence.pages).first(static_cast<std::size_t>(pages_for(prompt_tokens))));
  if (snapshot >= 0 && prompt_tokens > 1) snapshots_.push_back({sequence.state, snapshot, prompt_tokens - 1});
}

void Scheduler::set_draft(std::int32_t slot, std::int32_t drafts) {
  Sequence& sequence = at(slot);
  const bool decodes = sequence.computed + 1 == sequence.tokens && !sequence.again;
  sequence.draft = decodes ? drafts : 0;
}

// Prompt and reply, so that the next turn of the conversation goes on from them.
void Scheduler::keep(const Sequence& sequence, std::span<const std::int32_t> completion) {
  const auto prompt_tokens = static_cast<std::int32_t>(sequence.prompt->ids.size());
  if (!options_.reuse_prefixes || options_.stateful || sequence.computed <= prompt_tokens || sequence.kv_oldest != version_) return;
  std::vector<std::int32_t> ids = sequence.prompt->ids;
  const auto said = completion.first(static_cast<std::size_t>(sequence.computed - prompt_tokens));
  ids.insert(ids.end(), said.begin(), said.end());
  (void)cache_.insert(std::make_shared<const Prompt>(std::move(ids)), std::span(sequence.pages).first(static_cast<std::size_t>(pages_for(sequence.computed))));
}

void Scheduler::remove(std::int32_t slot, std::span<const std::int32_t> completion) {
  Sequence& sequence = at(slot);
  TROUPE_CHECK(sequence.prompt != nullptr, "a slot is removed once");
  if (!completion.empty()) keep(sequence, completion);
  release_pages(sequence);
  sequence.prompt.reset();
  std::erase(running_, slot);
  std::erase(waiting_, slot);
  free_slots_.push_back(slot);
}

void Scheduler::weights_changed(PolicyVersion version, OnUpdate mode) {
  version_ = version;
  cache_.clear();
  for (const std::int32_t slot : running_) at(slot).shares = false;
  if (mode == OnUpdate::kKeepKv) return;
  for (const std::int32_t slot : running_) {
    release_pages(at(slot));
    enqueue(waiting_, slot);
  }
  running_.clear();
}

}  // namespace troupe::generate
