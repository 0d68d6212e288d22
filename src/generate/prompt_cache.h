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

  struct Found {
    const Prompt* prompt = nullptr;  ///< The entry's; null: nothing was found.
    const std::vector<std::int32_t>* pages = nullptr;
    std::int32_t tokens = 0;  ///< That both begin with.
    std::int32_t state = -1;  ///< The snapshot that belongs to the entry.
  };
  /// The entry that equals the prompt, or nothing; marks it as used.
  [[nodiscard]] Found find(const Prompt& prompt);
  /// The entry that the prompt has most in common with; with states, only entries that the prompt goes on from.
  [[nodiscard]] Found find_longest(const Prompt& prompt);
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
  Found used(std::list<Entry>::iterator entry, std::int32_t tokens);

  PagePool& pool_;
  PagePool* states_;
  int entries_max_;
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace troupe::generate
