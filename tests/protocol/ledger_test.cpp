#include "protocol/ledger.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>

#include "protocol/support.h"

namespace troupe::protocol {
namespace {

constexpr PolicyVersion kV0{0, 0};
const WorkerId kA = rollout_worker(0);
const WorkerId kB = rollout_worker(1);

LedgerLimits limits(std::uint32_t group, std::uint64_t groups, std::optional<std::uint64_t> prompts = {}) {
  return {group, 3, groups, prompts};
}

/// Runs one prompt up to its delivery.
void deliver(Ledger& ledger, std::uint64_t prompt) {
  const std::size_t samples = ledger.find(prompt)->samples.size();
  for (std::uint32_t i = 0; i < samples; ++i) {
    ledger.assign({prompt, i}, kA, kV0, at(0s));
    ledger.complete({prompt, i}, kA, kV0, i, true);
  }
  ledger.to_batch(prompt);
  ledger.deliver(prompt);
}

TEST(Ledger, DispatchesUpToItsBoundAndTheEndOfThePrompts) {
  Ledger ledger;
  ledger.configure(limits(2, 2, 3));
  EXPECT_EQ(ledger.dispatch(), 0);
  EXPECT_EQ(ledger.dispatch(), 1);
  EXPECT_EQ(ledger.dispatch(), std::nullopt) << "two groups are in flight";
  ledger.cancel(0, CancelReason::kStale);
  EXPECT_EQ(ledger.dispatch(), 2);
  ledger.cancel(1, CancelReason::kStale);
  EXPECT_EQ(ledger.dispatch(), std::nullopt) << "three prompts exist";
  EXPECT_TRUE(ledger.exhausted());
  EXPECT_EQ(ledger.counters().dispatched, 3u);
  EXPECT_EQ(ledger.counters().cancelled(), 2u);
  EXPECT_EQ(ledger.counters().in_flight, 1u);
}

TEST(Ledger, TheFirstResultWinsAndLaterOnesAreDuplicates) {
  Ledger ledger;
  ledger.configure(limits(1, 2));
  ledger.dispatch();
  ledger.assign({0, 0}, kA, kV0, at(0s));
  EXPECT_EQ(ledger.fail({0, 0}, 1, kA), Ledger::Retry::kWaiting);
  EXPECT_EQ(ledger.assign({0, 0}, kB, kV0, at(1s)), 2u);
  const Ledger::Outcome first = ledger.complete({0, 0}, kA, kV0, 1, true);  // attempt 1 was only slow
  EXPECT_EQ(first.accepted, Ledger::Accepted::kGroupComplete);
  EXPECT_EQ(first.obsolete, kB);
  EXPECT_EQ(ledger.complete({0, 0}, kB, kV0, 1, true).accepted, Ledger::Accepted::kDuplicate);
  EXPECT_EQ(ledger.counters().duplicates, 1u);
  ledger.to_batch(0);
  ledger.deliver(0);
  EXPECT_EQ(ledger.complete({0, 0}, kB, kV0, 1, true).accepted, Ledger::Accepted::kLate);
  EXPECT_EQ(ledger.counters().late, 1u);
}

TEST(Ledger, AttemptsAreCountedAndOldOnesIgnored) {
  Ledger ledger;
  ledger.configure(limits(1, 1));
  ledger.dispatch();
  ledger.assign({0, 0}, kA, kV0, at(0s));
  EXPECT_EQ(ledger.fail({0, 0}, 1, kB), Ledger::Retry::kIgnored) << "another worker's failure";
  EXPECT_EQ(ledger.fail({0, 0}, 1, kA), Ledger::Retry::kWaiting);
  EXPECT_EQ(ledger.assign({0, 0}, kA, kV0, at(0s)), 2u);
  EXPECT_EQ(ledger.fail({0, 0}, 1, kA), Ledger::Retry::kIgnored) << "the message of attempt 1 came twice";
  EXPECT_EQ(ledger.fail({0, 0}, 2, kA), Ledger::Retry::kWaiting);
  EXPECT_EQ(ledger.assign({0, 0}, kA, kV0, at(0s)), 3u);
  EXPECT_EQ(ledger.fail({0, 0}, 3, kA), Ledger::Retry::kExhausted);
  EXPECT_EQ(ledger.counters().retries, 2u);
}

TEST(Ledger, AHandedBackPrefixKeepsItsAgeAndCostsNoAttempt) {
  Ledger ledger;
  ledger.configure(limits(1, 1));
  ledger.dispatch();
  ledger.assign({0, 0}, kA, {0, 3}, at(0s));
  EXPECT_TRUE(ledger.give_back({0, 0}, 1, kA, {0, 3}, true));
  EXPECT_FALSE(ledger.give_back({0, 0}, 1, kA, {0, 3}, true)) << "the message came twice";
  EXPECT_EQ(ledger.assign({0, 0}, kB, {0, 5}, at(1s)), 1u);
  EXPECT_EQ(ledger.find(0)->oldest({0, 9}), (PolicyVersion{0, 3}));
  ledger.fail({0, 0}, 1, kB);
  ledger.assign({0, 0}, kB, {0, 6}, at(2s));
  EXPECT_EQ(ledger.find(0)->oldest({0, 9}), (PolicyVersion{0, 6})) << "from scratch it is as young as its worker";
}

TEST(Ledger, ZeroSignalLooksOnlyAtTrainableSamples) {  // S19
  LedgerGroup group;
  for (const double reward : {1.0, 1.0, 1.0, 0.0}) {
    LedgerSample sample;
    sample.reward = reward;
    sample.trainable = reward == 1.0;
    group.samples.push_back(sample);
  }
  EXPECT_TRUE(group.zero_signal());
  group.samples[3].trainable = true;
  EXPECT_FALSE(group.zero_signal());
}

TEST(Ledger, RollbackBooksWhatCameAfterTheCommitAndDispatchesItAnew) {
  Ledger ledger;
  ledger.configure(limits(1, 8));
  for (int i = 0; i < 4; ++i) ledger.dispatch();
  deliver(ledger, 0);
  deliver(ledger, 2);
  const LedgerSnapshot commit = ledger.snapshot();
  EXPECT_EQ(commit.pending, (std::vector<std::uint64_t>{1, 3}));
  deliver(ledger, 1);
  ledger.cancel(3, CancelReason::kZeroSignal);
  for (int i = 0; i < 3; ++i) ledger.dispatch();  // 4, 5, 6
  ledger.rollback(commit);
  const LedgerCounters& c = ledger.counters();
  EXPECT_EQ(c.dispatched, 7u);
  EXPECT_EQ(c.delivered, 2u) << "the delivery of 1 is undone";
  EXPECT_EQ(c.cancelled_by[static_cast<std::size_t>(CancelReason::kRollback)], 4u) << "1, 4, 5, 6";
  EXPECT_EQ(c.in_flight, 0u);
  EXPECT_EQ(ledger.dispatch(), 1);
  EXPECT_EQ(ledger.dispatch(), 3);
  EXPECT_EQ(ledger.dispatch(), 4);
}

TEST(Ledger, ResumeTrainsEveryPromptExactlyOnce) {  // V16 b, c: ids 0..7, batches of 2, killed after the first step
  for (const std::vector<std::uint64_t>& finished : {std::vector<std::uint64_t>{0, 1, 2, 3}, {1, 2, 3, 0}}) {
    Ledger before;
    before.configure(limits(1, 4, 8));
    for (int i = 0; i < 4; ++i) before.dispatch();
    deliver(before, finished[0]);
    deliver(before, finished[1]);
    const auto restored = ledger_from_json(nlohmann::json::parse(to_json(before.snapshot()).dump()));
    ASSERT_TRUE(restored) << restored.error().to_string();

    Ledger after(*restored);
    after.configure(limits(1, 8, 8));
    std::vector<std::uint64_t> rest;
    while (const auto prompt = after.dispatch()) rest.push_back(*prompt);
    std::vector<std::uint64_t> expected;
    for (std::uint64_t id = 0; id < 8; ++id) {
      if (id != finished[0] && id != finished[1]) expected.push_back(id);
    }
    EXPECT_EQ(rest, expected);
    EXPECT_EQ(after.counters().dispatched, 10u);
    EXPECT_EQ(after.counters().cancelled(), 2u) << "the two that were in flight at the commit";
  }
}

TEST(Ledger, ResumeWithMorePromptsKeepsWhatWasTrained) {  // V16
  Ledger before;
  before.configure(limits(1, 4, 2));
  before.dispatch();
  before.dispatch();
  deliver(before, 0);
  before.cancel(1, CancelReason::kStale);  // a stale discard advances the ledger
  Ledger after(before.snapshot());
  after.configure(limits(1, 4, 3));
  EXPECT_EQ(after.dispatch(), 2);
  EXPECT_EQ(after.dispatch(), std::nullopt);
}

TEST(Ledger, AStoppedGroupIsPendingForTheNextRun) {
  Ledger ledger;
  ledger.configure(limits(1, 4));
  for (int i = 0; i < 3; ++i) ledger.dispatch();
  ledger.cancel(2, CancelReason::kStopped);
  ledger.cancel(0, CancelReason::kStopped);
  EXPECT_EQ(ledger.snapshot().pending, (std::vector<std::uint64_t>{0, 1, 2}));
  EXPECT_EQ(ledger.counters().in_flight, 1u);
}

TEST(LedgerJson, RefusesWhatDoesNotAddUp) {
  Ledger ledger;
  ledger.configure(limits(1, 4));
  for (int i = 0; i < 3; ++i) ledger.dispatch();
  const nlohmann::json good = to_json(ledger.snapshot());
  ASSERT_EQ(*ledger_from_json(good), ledger.snapshot());
  const auto refused = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json bad = good;
    bad[nlohmann::json::json_pointer(pointer)] = value;
    const auto result = ledger_from_json(bad);
    return !result && result.error().code == ErrorCode::kCorrupt;
  };
  EXPECT_TRUE(refused("/dispatched", 4));
  EXPECT_TRUE(refused("/next_prompt", -1));
  EXPECT_TRUE(refused("/next_prompt", 2));
  EXPECT_TRUE(refused("/pending", {0, 2, 1}));
  EXPECT_TRUE(refused("/pending", {0, 1, 1}));
  EXPECT_TRUE(refused("/pending", {0, 1}));
  EXPECT_TRUE(refused("/cancelled/stale", "1"));
  EXPECT_FALSE(ledger_from_json(nlohmann::json::array()));
}

TEST(LedgerDeathTest, AGroupLeavesOnce) {
  Ledger ledger;
  ledger.configure(limits(1, 1));
  ledger.dispatch();
  ledger.cancel(0, CancelReason::kStale);
  EXPECT_DEATH(ledger.cancel(0, CancelReason::kStale), "only a group in flight leaves");
}

} // namespace
} // namespace troupe::protocol
