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
  PromptCache(PagePool& pool, int entries_max) : pool_(pool), entries_max_(entries_max) {}

  /// The pages of an equal prompt, or nothing; marks it as used.
  [[nodiscard]] const std::vector<std::int32_t>* find(const Prompt& prompt);
  /// Keeps a prompt that is not in the cache yet; evicts the least recently used one when full.
  void insert(SharedPrompt prompt, std::span<const std::int32_t> pages);
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
  };
  void drop(std::list<Entry>::iterator entry);

  PagePool& pool_;
  int entries_max_;
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace troupe::generate
