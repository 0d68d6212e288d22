/// @file
/// Prompts whose KV entries are kept for further samples.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "generate/page_pool.h"

namespace troupe::generate {

/// A prompt and its hash, shared by the samples that have it.
struct Prompt {
  explicit Prompt(std::vector<std::int32_t> prompt_ids);
  std::vector<std::int32_t> ids;
  std::uint64_t hash;
  [[nodiscard]] bool same_as(const Prompt& other) const {
    return this == &other || (hash == other.hash && ids == other.ids);
  }
};
using SharedPrompt = std::shared_ptr<const Prompt>;

/// Complete prompts of the weights in use, least recently used last. Holds a reference on their pages.
/// The weights' version is the salt of every key: the owner calls clear() when it changes, so entries of two versions
/// never meet.
class PromptCache {
 public:
  /// `states`: where snapshots of states come from; null: sequences have none.
  PromptCache(PagePool& pool, int entries_max, PagePool* states = nullptr)
      : pool_(pool), states_(states), entries_max_(entries_max) {}

  /// The pages of an equal prompt, or nothing; marks it as used.
  [[nodiscard]] const std::vector<std::int32_t>* find(const Prompt& prompt);
  /// The snapshot that belongs to the prompt found last, -1 without states.
  [[nodiscard]] std::int32_t found_state() const { return entries_.empty() ? -1 : entries_.front().state; }
  /// Keeps a prompt that is not in the cache yet; evicts the least recently used one when full. Returns the number of the
  /// snapshot that the owner fills now, or -1: nothing was kept, or there are no states.
  std::int32_t insert(SharedPrompt prompt, std::span<const std::int32_t> pages);
  /// Drops the least recently used entry other than `spared` (may be null); false when there is none.
  bool evict(const Prompt* spared = nullptr);
  /// Pages that evicting everything but `spared` would free.
  [[nodiscard]] int evictable_pages(const Prompt* spared) const;
  void clear();
  [[nodiscard]] int entries() const { return static_cast<int>(entries_.size()); }

 private:
  struct Entry {
    SharedPrompt prompt;
    std::vector<std::int32_t> pages;
    std::int32_t state = -1;
  };
  void drop(std::list<Entry>::iterator entry);

  PagePool& pool_;
  PagePool* states_;
  int entries_max_;
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace troupe::generate
