#include "generate/prompt_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/hash.h"

namespace troupe::generate {

Prompt::Prompt(std::vector<std::int32_t> prompt_ids)
    : ids(std::move(prompt_ids)), hash(hash64(std::as_bytes(std::span(ids)))) {}

PromptCache::Found PromptCache::used(std::list<Entry>::iterator entry, std::int32_t tokens) {
  entries_.splice(entries_.begin(), entries_, entry);
  return {entry->prompt.get(), &entry->pages, tokens, entry->state};
}

PromptCache::Found PromptCache::find(const Prompt& prompt) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
    if (entry->prompt->same_as(prompt)) return used(entry, static_cast<std::int32_t>(prompt.ids.size()));
  return {};
}

PromptCache::Found PromptCache::find_longest(const Prompt& prompt) {
  auto best = entries_.end();
  std::ptrdiff_t most = 0;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const auto& ids = entry->prompt->ids;
    const auto common = std::mismatch(ids.begin(), ids.end(), prompt.ids.begin(), prompt.ids.end()).first - ids.begin();
    if (common <= most || (states_ != nullptr && common < static_cast<std::ptrdiff_t>(ids.size()))) continue;
    best = entry;
    most = common;
  }
  return best == entries_.end() ? Found{} : used(best, static_cast<std::int32_t>(most));
}

std::int32_t PromptCache::insert(SharedPrompt prompt, std::span<const std::int32_t> pages) {
  if (entries_max_ == 0 || find(*prompt).prompt != nullptr) return -1;
  while (entries() >= entries_max_) drop(std::prev(entries_.end()));
  for (const std::int32_t page : pages) pool_.retain(page);
  const std::int32_t state = states_ == nullptr ? -1 : states_->allocate().value();  // one for every entry there can be
  entries_.push_front({std::move(prompt), {pages.begin(), pages.end()}, state});
  return state;
}

bool PromptCache::evict(const Prompt* spared) {
  for (auto entry = entries_.end(); entry != entries_.begin();) {
    --entry;
    if (spared != nullptr && entry->prompt->same_as(*spared)) continue;
    drop(entry);
    return true;
  }
  return false;
}

int PromptCache::evictable_pages(const Prompt* spared) const {
  int pages = 0;
  for (const Entry& entry : entries_) {
    if (spared != nullptr && entry.prompt->same_as(*spared)) continue;
    for (const std::int32_t page : entry.pages) pages += pool_.references(page) == 1;
  }
  return pages;
}

void PromptCache::clear() {
  while (!entries_.empty()) drop(entries_.begin());
}

void PromptCache::drop(std::list<Entry>::iterator entry) {
  for (const std::int32_t page : entry->pages) pool_.release(page);
  if (entry->state >= 0) states_->release(entry->state);
  entries_.erase(entry);
}

}  // namespace troupe::generate
