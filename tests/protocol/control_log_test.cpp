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

std::vector<Record> history() {
  return {Term{1},
          Wanted{Role::kRollout, 2, 1},
          Progress{position(0, 3)},
          Committed{position(0, 3)},
          Wanted{Role::kRollout, 6, 2},
          Epoch{1},
          Term{2},
          Progress{position(1, 4)},
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
       std::vector<Record>{Term{2}, Term{1}, Epoch{0}, Progress{position(0, 9)}, Committed{position(0, 2)}}) {
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
