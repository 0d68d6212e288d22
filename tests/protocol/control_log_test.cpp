#include "protocol/control_log.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <vector>

namespace troupe::protocol {
namespace {

using namespace control;

RunPosition position(std::uint32_t epoch, std::uint64_t step) {
  RunPosition p;
  p.stage = 1;
  p.stage_step = step;
  p.version = {epoch, step};
  return p;
}

LedgerSnapshot ledger(std::uint64_t next, std::vector<std::uint64_t> pending, std::uint64_t delivered, std::uint64_t in_flight) {
  LedgerSnapshot s;
  s.next_prompt = next;
  s.pending = std::move(pending);
  s.counters.dispatched = delivered + in_flight;
  s.counters.delivered = delivered;
  s.counters.in_flight = in_flight;
  return s;
}

std::vector<Record> history() {
  return {Term{1},
          Wanted{Role::kRollout, 2, 1},
          Progress{position(0, 3), ledger(10, {8, 9}, 8, 2)},
          Ordered{{0, 3}, {8}},
          Agent{77, 123456},
          Tally{R"({"tokens":5})"},
          Committed{position(0, 3)},
          Wanted{Role::kRollout, 6, 2},
          Setting{"optim.lr=0.1"},
          Setting{"checkpoint.every=7"},
          Setting{"optim.lr=0.01"},
          Epoch{1},
          Term{2},
          Progress{position(1, 4), ledger(12, {11}, 11, 1)},
          Ordered{{1, 4}, {11, 12}},
          Ended{RunExit::kStopped}};
}

TEST(ControlLog, FoldsToWhatWasKnown) {
  State state;
  for (const Record& record : history()) ASSERT_TRUE(apply(state, record));
  EXPECT_EQ(state.term, 2u);
  EXPECT_EQ(state.epoch, 1u);
  EXPECT_EQ(state.wanted.at(Role::kRollout), (WantedCount{6, 2}));
  EXPECT_EQ(state.position, position(1, 4));
  EXPECT_EQ(state.committed, position(0, 3));
  EXPECT_EQ(state.settings, (std::vector<std::string>{"checkpoint.every=7", "optim.lr=0.01"}));
  EXPECT_EQ(state.ended, RunExit::kStopped);
  ASSERT_TRUE(apply(state, Term{3}));
  EXPECT_EQ(state.ended, std::nullopt) << "a resumed run is not over";
}

TEST(ControlLog, TheLastScaleWinsInAnyOrder) {
  State state;
  ASSERT_TRUE(apply(state, Wanted{Role::kRollout, 8, 5}));
  ASSERT_TRUE(apply(state, Wanted{Role::kRollout, 1, 4}));
  EXPECT_EQ(state.wanted.at(Role::kRollout), (WantedCount{8, 5}));
}

TEST(ControlLog, OlderTermsEpochsAndCommitsAreFencedAndChangeNothing) {
  State state;
  for (const Record& record : history()) ASSERT_TRUE(apply(state, record));
  const State before = state;
  for (const Record& old :
       std::vector<Record>{Term{2}, Term{1}, Epoch{0}, Progress{position(0, 9), {}}, Committed{position(0, 2)}}) {
    const Status status = apply(state, old);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kFenced);
    EXPECT_EQ(state, before);
  }
}

TEST(ControlLog, RecordsSurviveJson) {
  State direct;
  State through_json;
  for (const Record& record : history()) {
    const auto back = record_from_json(nlohmann::json::parse(to_json(record).dump()));
    ASSERT_TRUE(back) << back.error().to_string();
    ASSERT_TRUE(apply(direct, record));
    ASSERT_TRUE(apply(through_json, *back));
  }
  EXPECT_EQ(direct, through_json);
}

TEST(ControlLog, NumbersAreReadExactlyOrNotAtAll) {
  for (const char* text : {R"({"kind":"term","term":1.9})", R"({"kind":"term","term":1e300})", R"({"kind":"term","term":-1})",
                           R"({"kind":"epoch","epoch":4294967296})", R"({"kind":"agent","pid":2147483648,"start_ticks":1})",
                           R"({"kind":"ordered","epoch":0,"step":1,"prompts":[-1]})", R"({"kind":"wanted","role":"rollout","count":true,"generation":1})"}) {
    const auto record = record_from_json(nlohmann::json::parse(text));
    ASSERT_FALSE(record) << text;
    EXPECT_EQ(record.error().code, ErrorCode::kCorrupt) << text;
  }
}

TEST(ControlLog, AnOrderFarBeyondTheLedgerIsRefused) {
  State state;
  ASSERT_TRUE(apply(state, Progress{position(0, 3), ledger(10, {8, 9}, 8, 2)}));
  ASSERT_TRUE(apply(state, Ordered{{0, 3}, {8, 500}}));
  const Status far = apply(state, Ordered{{0, 3}, {8, UINT64_MAX}}); // after_delivery would count up to it
  ASSERT_FALSE(far);
  EXPECT_EQ(far.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(apply(state, Ordered{{0, 2}, {UINT64_MAX}})) << "of a state that was rolled back: nothing is looked at";
}

TEST(ControlLog, TheFewestRecordsSayTheSame) {
  State state, again;
  for (const Record& record : history()) {
    ASSERT_TRUE(apply(state, record));
    again = {};
    for (const Record& r : records_of(state)) ASSERT_TRUE(apply(again, r)) << to_json(r).dump();
    EXPECT_EQ(again, state);
  }
  EXPECT_LT(records_of(state).size(), history().size());
}

State before_step_five(PolicyVersion order_from = {1, 4}) {
  State state;
  for (const Record& r : std::vector<Record>{Term{2}, Epoch{1}, Progress{position(1, 4), ledger(12, {10, 11}, 10, 2)}, Ordered{order_from, {10, 13}}})
    EXPECT_TRUE(apply(state, r));
  return state;
}

// The simulator's seed 587: a commit of epoch 1 landed after the run had gone back to step 3 in epoch 2; the head died there, and the next one
// took that commit for its own.
TEST(WarmStart, ACommitOfALostEpochThatIsAheadIsNotOnesOwn) {
  State state;
  for (const Record& r : std::vector<Record>{Term{1}, Epoch{2}, Progress{position(2, 3), ledger(12, {10, 11}, 10, 2)}}) ASSERT_TRUE(apply(state, r));
  EXPECT_TRUE(may_return_to(state, {2, 3}, ledger(12, {10, 11}, 10, 0)));
  EXPECT_TRUE(may_return_to(state, {2, 4}, ledger(16, {}, 14, 0))) << "of the present epoch: the step that was ordered last";
  EXPECT_TRUE(may_return_to(state, {1, 3}, ledger(12, {10, 11}, 10, 0)));
  EXPECT_TRUE(may_return_to(state, {0, 1}, ledger(4, {}, 2, 0)));
  EXPECT_FALSE(may_return_to(state, {1, 4}, ledger(16, {}, 14, 0)));
  EXPECT_FALSE(may_return_to(state, {1, 3}, ledger(16, {}, 14, 0)));
}

TEST(WarmStart, ARankThatHoldsWhatWasLoggedGoesOnThere) {
  const auto start = warm_start(before_step_five(), {1, 4});
  ASSERT_TRUE(start);
  EXPECT_EQ(start->position, position(1, 4));
  EXPECT_FALSE(start->step_ahead);
  EXPECT_EQ(start->ledger, ledger(12, {10, 11}, 10, 0)) << "what was in flight will be dispatched under the same identities";
}

TEST(WarmStart, ARankThatMadeTheOrderedStepIsOneAheadAndItsPromptsAreDelivered) {
  const auto start = warm_start(before_step_five(), {1, 5});
  ASSERT_TRUE(start);
  EXPECT_TRUE(start->step_ahead);
  EXPECT_EQ(start->position, position(1, 5));
  // 12 and 13 were dispatched after the log was written: 13 was in the batch, 12 goes out again.
  EXPECT_EQ(start->ledger, ledger(14, {11, 12}, 12, 0));
}

TEST(WarmStart, AnythingElseGoesBackToACheckpoint) {
  EXPECT_FALSE(warm_start(before_step_five(), {0, 4})) << "of another epoch";
  EXPECT_FALSE(warm_start(before_step_five(), {1, 6})) << "two steps ahead: impossible, so not trusted";
  EXPECT_FALSE(warm_start(before_step_five(), {1, 3}));
  EXPECT_FALSE(warm_start(before_step_five({1, 3}), {1, 5})) << "the order was that of another step";
  State ended = before_step_five();
  ASSERT_TRUE(apply(ended, Ended{RunExit::kFailed}));
  EXPECT_FALSE(warm_start(ended, {1, 4}));
}

TEST(WarmStart, DeliveringTwiceCountsOnce) {
  const LedgerSnapshot before = ledger(12, {10, 11}, 10, 2);
  EXPECT_EQ(after_delivery(before, {10, 10}), ledger(12, {11}, 11, 1));
  EXPECT_EQ(after_delivery(before, {3}), before) << "settled long ago";
  EXPECT_TRUE(ledger_from_json(to_json(after_delivery(before, {11, 20})))) << "it balances";
}

TEST(ControlLog, BadRecordsAreCorruptNotFatal) {
  for (const char* text :
       {R"({})", R"({"kind":"coup"})", R"({"kind":"term"})", R"({"kind":"term","term":"x"})", R"([1])",
        R"({"kind":"progress","position":{"stage":0}})", R"({"kind":"ended","exit":"well"})"}) {
    const auto result = record_from_json(nlohmann::json::parse(text));
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code, ErrorCode::kCorrupt) << text;
  }
}

} // namespace
} // namespace troupe::protocol
