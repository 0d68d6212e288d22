/// @file
/// Decides what every step computes. Pure: no tensors, no clock, no randomness.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "generate/options.h"
#include "generate/page_pool.h"
#include "generate/prompt_cache.h"

namespace troupe::generate {

struct SchedulerOptions {
  int pages = 0;
  int page_tokens = 16;
  int sequences_max = 64;
  int prefill_tokens = 512;
  int cached_prompts_max = 256;
  bool reuse_prefixes = false;
  bool stateful = false;  ///< Sequences have a state beside their pages, which cannot go back.
  /// States a cache needs: of running sequences and of kept prompts.
  [[nodiscard]] int states() const { return stateful ? sequences_max + cached_prompts_max : 0; }
};

/// Compute tokens [begin, begin + count) of the sequence in `slot`; `samples`: its last known token's row gives the next one. The last `drafts`
/// of them are guesses, whose rows give the tokens after that as long as they turn out right.
struct Work {
  std::int32_t slot = 0;
  std::int32_t begin = 0;
  std::int32_t count = 0;
  bool samples = false;
  std::int32_t drafts = 0;
};

struct PageCopy {
  std::int32_t from = 0;
  std::int32_t to = 0;
};

/// State `to` becomes what `from` was after `tokens` tokens.
struct StateCopy {
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t tokens = 0;
};

/// One step: first the copies, in order, then one forward pass of the work.
struct Plan {
  std::vector<Work> work;
  std::vector<PageCopy> copies;
  std::vector<StateCopy> state_copies;
  int preempted = 0;
};

/// Continuous batching with chunked prefill.
///
/// - Every generating sequence gets one token a step; `prefill_tokens` more go to those that are not there yet, oldest
/// first.
/// - Sequences are admitted in order of arrival when the pages of all their known tokens are there and one is left for
/// every running
///   one. One whose prompt is just being computed by another waits for it and then shares its pages; it holds up nobody
///   behind it.
/// - With states, a prompt that will be kept is computed up to its last token first: the state there is what others go on
/// from, with that token.
/// - When a running sequence finds no page, kept prompts go first, then the youngest running sequence loses its pages
/// and is computed
///   again later. So the oldest always ends, and with it every sequence.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  /// A new sequence of `tokens` known tokens, the prompt's first. Its pages at its longest must fit the pool: see
  /// pages_for(). Returns its slot: a small number, reused after remove().
  std::int32_t add(SharedPrompt prompt, std::int32_t tokens);
  /// The next step. The reference is valid until the next call; every work of it must be reported by advance() or its
  /// slot removed.
  const Plan& plan();
  /// The work is done, and its sequence has `sampled` more tokens now: the next one, and one for each guess that was right (all but the last of
  /// them were in the work).
  void advance(const Work& work, std::int32_t sampled);
  /// The next work of a sequence that has sampled may have this many guesses (0 or 1), where there is room. Where states cannot go back, a wrong
  /// guess costs the rows of its step again, and the next step has none.
  void set_draft(std::int32_t slot, std::int32_t drafts);
  /// `completion`: what was sampled after the prompt; it is kept with the prompt where prefixes are reused.
  void remove(std::int32_t slot, std::span<const std::int32_t> completion = {});
  /// Nothing computed so far may serve sequences that are not running. kRecomputeKv: the running ones start over too.
  void weights_changed(PolicyVersion version, OnUpdate mode);

  [[nodiscard]] std::span<const std::int32_t> pages(std::int32_t slot) const {
    return sequences_[static_cast<std::size_t>(slot)].pages;
  }
  /// The number of a running sequence's state; -1 where there are none.
  [[nodiscard]] std::int32_t state(std::int32_t slot) const { return sequences_[static_cast<std::size_t>(slot)].state; }
  /// The oldest weights behind the KV entries of a running sequence.
  [[nodiscard]] PolicyVersion kv_oldest(std::int32_t slot) const {
    return sequences_[static_cast<std::size_t>(slot)].kv_oldest;
  }
  [[nodiscard]] int pages_for(std::int32_t tokens) const {
    return (tokens + options_.page_tokens - 1) / options_.page_tokens;
  }
  [[nodiscard]] int running() const { return static_cast<int>(running_.size()); }
  [[nodiscard]] int waiting() const { return static_cast<int>(waiting_.size()); }
  [[nodiscard]] const PagePool& pool() const { return pool_; }
  [[nodiscard]] int cached_prompts() const { return cache_.entries(); }
  [[nodiscard]] std::uint64_t tokens_shared() const { return tokens_shared_; }
  [[nodiscard]] std::uint64_t preemptions() const { return preemptions_; }

 private:
  struct Sequence {
    SharedPrompt prompt;  // null: the slot is free
    std::uint64_t arrival = 0;
    std::int32_t tokens = 0;    // known
    std::int32_t computed = 0;  // have KV entries
    std::vector<std::int32_t> pages;
    std::int32_t state = -1;
    PolicyVersion kv_oldest;
    std::int32_t draft = 0;   // guesses for the next work
    bool again = false;       // rows of the last step are computed again, as a guess was wrong
    bool shares = false;  // computes its prompt under the weights in use, so that others may have it
  };

  Sequence& at(std::int32_t slot) { return sequences_[static_cast<std::size_t>(slot)]; }
  void enqueue(std::vector<std::int32_t>& queue, std::int32_t slot);
  void admit();
  bool admit_one(std::int32_t slot);
  [[nodiscard]] bool prompt_in_progress(const Prompt& prompt) const;
  bool make_writable(std::int32_t slot, std::int32_t tokens);
  bool reclaim(std::int32_t slot);
  void preempt(std::int32_t slot);
  void release_pages(Sequence& sequence);
  void keep(const Sequence& sequence, std::span<const std::int32_t> completion);
  [[nodiscard]] std::int32_t until_snapshot(const Sequence& sequence, std::int32_t count) const;
  void schedule(std::int32_t slot);

  SchedulerOptions options_;
  PagePool pool_;
  PagePool states_;
  PromptCache cache_;
  PolicyVersion version_;
  std::vector<Sequence> sequences_;  // by slot
  std::vector<std::int32_t> free_slots_;
  std::vector<std::int32_t> running_;  // by arrival
  std::vector<std::int32_t> waiting_;  // by arrival
  std::uint64_t arrivals_ = 0;
  std::uint64_t tokens_shared_ = 0;
  std::uint64_t preemptions_ = 0;
  int prefill_left_ = 0;
  std::vector<StateCopy> snapshots_;  // of prompts completed by the last step
  Plan plan_;
};

}  // namespace troupe::generate
