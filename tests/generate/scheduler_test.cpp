#include "generate/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/rng.h"

namespace troupe::generate {
namespace {

SharedPrompt prompt_of(std::int32_t tokens, std::int32_t first) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (std::int32_t i = 0; i < tokens; ++i) ids[static_cast<std::size_t>(i)] = first + i;
  return std::make_shared<const Prompt>(ids);
}

void finish_step(Scheduler& scheduler, const Plan& plan) {
  for (const Work& w : plan.work) scheduler.advance(w, w.samples);
}

TEST(Scheduler, PrefillsInChunksBesideEveryDecode) {
  Scheduler scheduler({.pages = 32, .page_tokens = 4, .sequences_max = 4, .prefill_tokens = 5});
  const auto a = scheduler.add(prompt_of(3, 0), 3);
  finish_step(scheduler, scheduler.plan());
  const auto b = scheduler.add(prompt_of(12, 100), 12);
  std::vector<std::int32_t> chunks;
  for (bool sampled = false; !sampled;) {
    const Plan& plan = scheduler.plan();
    ASSERT_EQ(plan.work.size(), 2u);
    EXPECT_EQ(plan.work[0].slot, a);  // decodes every step
    EXPECT_EQ(plan.work[0].count, 1);
    EXPECT_TRUE(plan.work[0].samples);
    EXPECT_EQ(plan.work[1].slot, b);
    chunks.push_back(plan.work[1].count);
    sampled = plan.work[1].samples;
    finish_step(scheduler, plan);
  }
  EXPECT_EQ(chunks, (std::vector<std::int32_t>{5, 5, 2}));
}

TEST(Scheduler, AGroupComputesItsPromptOnce) {
  Scheduler scheduler({.pages = 64, .page_tokens = 4, .sequences_max = 16, .prefill_tokens = 64});
  for (int i = 0; i < 8; ++i) scheduler.add(prompt_of(10, 0), 10);
  EXPECT_EQ(scheduler.plan().work.size(), 1u);  // the others wait for it
  finish_step(scheduler, scheduler.plan());
  const Plan& plan = scheduler.plan();
  ASSERT_EQ(plan.work.size(), 8u);
  for (const Work& w : plan.work) EXPECT_EQ(w.count, 1);
  EXPECT_EQ(scheduler.tokens_shared(), 7u * 9);
  EXPECT_EQ(plan.copies.size(), 8u);  // the last page holds 2 of 4 tokens: each writes into a copy of its own
  std::set<std::int32_t> last;
  for (const Work& w : plan.work) {
    const auto pages = scheduler.pages(w.slot);
    EXPECT_EQ(pages[0], scheduler.pages(plan.work[0].slot)[0]);
    EXPECT_EQ(pages[1], scheduler.pages(plan.work[0].slot)[1]);
    EXPECT_TRUE(last.insert(pages[2]).second);
  }
}

TEST(Scheduler, StatesAreTakenBeforeAPromptsLastToken) {
  Scheduler scheduler({.pages = 64, .page_tokens = 4, .sequences_max = 4, .prefill_tokens = 6, .stateful = true});
  const auto a = scheduler.add(prompt_of(10, 0), 10);
  std::vector<std::int32_t> chunks;
  for (int step = 0; step < 3; ++step) {
    const Plan& plan = scheduler.plan();
    EXPECT_TRUE(plan.state_copies.empty());
    ASSERT_EQ(plan.work.size(), 1u);
    chunks.push_back(plan.work[0].count);
    finish_step(scheduler, plan);
  }
  EXPECT_EQ(chunks, (std::vector<std::int32_t>{6, 3, 1}));
  const auto b = scheduler.add(prompt_of(10, 0), 10);
  const auto c = scheduler.add(prompt_of(10, 0), 14);  // goes on after an abort
  const Plan& plan = scheduler.plan();
  ASSERT_EQ(plan.state_copies.size(), 3u);
  const StateCopy snapshot = plan.state_copies[0];
  EXPECT_EQ(snapshot.from, scheduler.state(a));
  EXPECT_EQ(snapshot.tokens, 9);
  const std::int32_t slots[] = {b, c};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(plan.state_copies[static_cast<std::size_t>(i) + 1].from, snapshot.to);
    EXPECT_EQ(plan.state_copies[static_cast<std::size_t>(i) + 1].to, scheduler.state(slots[i]));
    EXPECT_EQ(plan.state_copies[static_cast<std::size_t>(i) + 1].tokens, 9);
    EXPECT_EQ(plan.work[static_cast<std::size_t>(i) + 1].begin, 9);
  }
  EXPECT_EQ(std::set<std::int32_t>({scheduler.state(a), scheduler.state(b), scheduler.state(c), snapshot.to}).size(), 4u);
}

TEST(Scheduler, StatesComeBackFromWhoeverHadThem) {  // more of them would be taken than there are
  Scheduler scheduler({.pages = 64, .page_tokens = 4, .sequences_max = 2, .prefill_tokens = 64, .cached_prompts_max = 1,
                       .stateful = true});
  for (int round = 0; round < 20; ++round) {
    const auto a = scheduler.add(prompt_of(5, 100 * round), 5);
    const auto b = scheduler.add(prompt_of(6, 100 * round + 50), 6);
    for (int step = 0; step < 3; ++step) finish_step(scheduler, scheduler.plan());
    if (round % 3 == 0) scheduler.weights_changed({0, static_cast<std::uint64_t>(round)}, OnUpdate::kRecomputeKv);
    scheduler.remove(a);
    scheduler.remove(b);
  }
  EXPECT_EQ(scheduler.running(), 0);
}

TEST(Scheduler, OneTokenPromptsAreNotAdmittedOneByOne) {
  Scheduler scheduler({.pages = 64, .page_tokens = 4, .sequences_max = 16, .prefill_tokens = 64});
  for (int i = 0; i < 8; ++i) scheduler.add(prompt_of(1, 0), 1);
  finish_step(scheduler, scheduler.plan());
  EXPECT_EQ(scheduler.plan().work.size(), 8u);
}

TEST(Scheduler, WaitingSiblingsHoldUpNobodyBehindThem) {
  Scheduler scheduler({.pages = 64, .page_tokens = 4, .sequences_max = 16, .prefill_tokens = 4});
  scheduler.add(prompt_of(40, 0), 40);
  scheduler.add(prompt_of(40, 0), 40);
  finish_step(scheduler, scheduler.plan());
  const auto other = scheduler.add(prompt_of(1, 500), 1);
  finish_step(scheduler, scheduler.plan());  // the budget is the leader's
  EXPECT_EQ(scheduler.running(), 1);
  std::set<std::int32_t> seen;
  for (int i = 0; i < 9; ++i) {
    const Plan& plan = scheduler.plan();
    for (const Work& w : plan.work) seen.insert(w.slot);
    finish_step(scheduler, plan);
  }
  EXPECT_TRUE(seen.contains(other));
}

TEST(Scheduler, TheYoungestIsPreemptedAndEverythingEnds) {
  Scheduler scheduler({.pages = 6, .page_tokens = 2, .sequences_max = 8, .prefill_tokens = 8});
  const auto oldest = scheduler.add(prompt_of(2, 0), 2);
  const auto middle = scheduler.add(prompt_of(2, 10), 2);
  const auto youngest = scheduler.add(prompt_of(2, 20), 2);
  std::map<std::int32_t, int> sampled;
  std::set<std::int32_t> preempted;
  for (int step = 0; step < 200 && sampled.size() < 4; ++step) {
    const Plan& plan = scheduler.plan();
    for (const std::int32_t slot : {oldest, middle, youngest}) {
      const bool worked =
          std::any_of(plan.work.begin(), plan.work.end(), [&](const Work& w) { return w.slot == slot; });
      if (sampled[slot] > 0 && sampled[slot] < 10 && !worked) preempted.insert(slot);
    }
    for (const Work& w : plan.work) {
      scheduler.advance(w, w.samples);
      if (w.samples && ++sampled[w.slot] == 10) scheduler.remove(w.slot);
    }
    if (sampled[oldest] >= 10 && sampled[middle] >= 10 && sampled[youngest] >= 10) break;
  }
  EXPECT_EQ(sampled[youngest], 10);
  EXPECT_GT(scheduler.preemptions(), 0u);
  EXPECT_FALSE(preempted.contains(oldest));
  scheduler.weights_changed({0, 1}, OnUpdate::kKeepKv);
  EXPECT_EQ(scheduler.pool().free_pages(), 6);
}

TEST(Scheduler, NewWeightsMakeTheNextSampleComputeThePromptAnew) {
  for (const OnUpdate mode : {OnUpdate::kKeepKv, OnUpdate::kRecomputeKv}) {
    Scheduler scheduler({.pages = 64, .page_tokens = 4, .sequences_max = 8, .prefill_tokens = 64});
    const auto running = scheduler.add(prompt_of(9, 0), 9);
    finish_step(scheduler, scheduler.plan());
    scheduler.weights_changed({0, 1}, mode);
    const auto fresh = scheduler.add(prompt_of(9, 0), 9);
    std::map<std::int32_t, std::int32_t> count;
    while (!count.contains(fresh)) {
      const Plan& plan = scheduler.plan();
      for (const Work& w : plan.work) count.emplace(w.slot, w.count);
      finish_step(scheduler, plan);
    }
    if (mode == OnUpdate::kKeepKv) {
      EXPECT_EQ(count[running], 1);
      EXPECT_EQ(count[fresh], 9);
      EXPECT_EQ(scheduler.kv_oldest(running), (PolicyVersion{0, 0}));
    } else {
      EXPECT_EQ(count[running], 10);
      EXPECT_EQ(count[fresh], 1);  // shares what the running one computed anew
      EXPECT_EQ(scheduler.kv_oldest(running), (PolicyVersion{0, 1}));
    }
    EXPECT_EQ(scheduler.kv_oldest(fresh), (PolicyVersion{0, 1}));
  }
}

TEST(Scheduler, APromptHalfDoneAtTheUpdateIsNotShared) {
  Scheduler scheduler({.pages = 64, .page_tokens = 4, .sequences_max = 8, .prefill_tokens = 6});
  scheduler.add(prompt_of(9, 0), 9);
  const auto sibling = scheduler.add(prompt_of(9, 0), 9);
  finish_step(scheduler, scheduler.plan());
  scheduler.weights_changed({0, 1}, OnUpdate::kKeepKv);
  std::int32_t computed = 0;
  for (int i = 0; i < 4; ++i) {
    const Plan& plan = scheduler.plan();
    for (const Work& w : plan.work)
      if (w.slot == sibling && computed < 9) computed += w.count;
    finish_step(scheduler, plan);
  }
  EXPECT_EQ(computed, 9);
}

// Random arrivals, ends, aborts and updates against the rules that hold after every plan.
TEST(Scheduler, KeepsItsRulesUnderRandomUse) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed, RngStream::kTest);
    const int page_tokens = 1 + static_cast<int>(rng.below(5));
    const SchedulerOptions options{.pages = 30,
                                   .page_tokens = page_tokens,
                                   .sequences_max = 1 + static_cast<int>(rng.below(8)),
                                   .prefill_tokens = 1 + static_cast<int>(rng.below(12)),
                                   .cached_prompts_max = static_cast<int>(rng.below(4))};
    Scheduler scheduler(options);
    struct Live {
      std::int32_t tokens, computed, longest;
    };
    std::map<std::int32_t, Live> live;
    for (std::uint64_t step = 0; step < 400; ++step) {
      if (live.size() < 12 && rng.below(2) == 0) {
        const auto prompt = static_cast<std::int32_t>(1 + rng.below(12));
        const auto extra = static_cast<std::int32_t>(rng.below(4));
        const auto slot = scheduler.add(prompt_of(prompt, prompt), prompt + extra);
        ASSERT_FALSE(live.contains(slot));
        live[slot] = {
            prompt + extra, 0,
            std::min<std::int32_t>(prompt + extra + static_cast<std::int32_t>(rng.below(16)) + 1, 30 * page_tokens)};
      }
      if (!live.empty() && rng.below(10) == 0) {
        const auto victim = std::next(live.begin(), static_cast<std::ptrdiff_t>(rng.below(live.size())))->first;
        scheduler.remove(victim);
        live.erase(victim);
      }
      if (rng.below(25) == 0)
        scheduler.weights_changed({0, step}, rng.below(2) == 0 ? OnUpdate::kKeepKv : OnUpdate::kRecomputeKv);

      const Plan& plan = scheduler.plan();
      ASSERT_EQ(plan.work.empty(), live.empty()) << "seed " << seed;
      ASSERT_LE(scheduler.running(), options.sequences_max);
      ASSERT_EQ(scheduler.running() + scheduler.waiting(), static_cast<int>(live.size()));
      int bulk = 0;
      std::set<std::int32_t> slots, written;
      for (const Work& w : plan.work) {
        ASSERT_TRUE(slots.insert(w.slot).second && live.contains(w.slot));
        ASSERT_EQ(w.samples, w.begin + w.count == live[w.slot].tokens);
        if (w.count > 1) bulk += w.count;
        const auto pages = scheduler.pages(w.slot);
        ASSERT_GE(static_cast<int>(pages.size()), scheduler.pages_for(w.begin + w.count));
        for (int p = w.begin / page_tokens; p < scheduler.pages_for(w.begin + w.count); ++p) {
          ASSERT_EQ(scheduler.pool().references(pages[static_cast<std::size_t>(p)]), 1) << "a shared page is written";
          ASSERT_TRUE(written.insert(pages[static_cast<std::size_t>(p)]).second);
        }
      }
      ASSERT_LE(bulk, options.prefill_tokens);
      const std::vector<Work> work = plan.work;
      for (const Work& w : work) {
        scheduler.advance(w, w.samples);
        live[w.slot].computed = w.begin + w.count;
        if (w.samples && ++live[w.slot].tokens >= live[w.slot].longest) {
          scheduler.remove(w.slot);
          live.erase(w.slot);
        }
      }
    }
    for (int step = 0; !live.empty(); ++step) {  // nothing starves
      ASSERT_LT(step, 3000) << "seed " << seed;
      const std::vector<Work> work = scheduler.plan().work;
      for (const Work& w : work) {
        scheduler.advance(w, w.samples);
        if (w.samples && ++live[w.slot].tokens >= live[w.slot].longest) {
          scheduler.remove(w.slot);
          live.erase(w.slot);
        }
      }
    }
    scheduler.weights_changed({1, 0}, OnUpdate::kKeepKv);
    ASSERT_EQ(scheduler.pool().free_pages(), 30) << "seed " << seed << ": pages leak";
  }
}

}  // namespace
}  // namespace troupe::generate
