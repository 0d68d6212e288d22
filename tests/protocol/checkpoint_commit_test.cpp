#include "protocol/checkpoint_commit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/support.h"

namespace troupe::protocol {
namespace {

using namespace checkpoint;
using testing::ElementsAre;

/// Plays the phases of one save up to `phases` of five: request, prepared, copied, written, committed.
std::vector<Effect> play(CheckpointCommit& core, PolicyVersion version, int phases, TimePoint now = at(0s)) {
  auto last = core.handle(Request{version, "{}"}, now);
  const std::uint64_t save = has<CopyState>(last) ? all<CopyState>(last)[0].save : all<Prepare>(last).at(0).save;
  if (phases > 1) last = core.handle(Prepared{save}, now);
  if (phases > 2) last = core.handle(StateCopied{save, 0, version}, now);
  if (phases > 3) last = core.handle(Written{save}, now);
  if (phases > 4) last = core.handle(Committed{save}, now);
  return last;
}

TEST(CheckpointCommit, GoesThroughItsPhases) {
  CheckpointCommit core({}, 0, 2);
  const auto request = core.handle(Request{{0, 5}, "record"}, at(0s));
  ASSERT_EQ(all<Prepare>(request).size(), 1u);
  ASSERT_EQ(all<CopyState>(core.handle(Prepared{1}, at(1s))).size(), 1u);
  EXPECT_FALSE(has<Write>(core.handle(StateCopied{1, 0, {0, 5}}, at(2s))));
  EXPECT_FALSE(has<Write>(core.handle(StateCopied{1, 0, {0, 5}}, at(2s)))) << "the same rank twice";
  const auto copied = core.handle(StateCopied{1, 1, {0, 5}}, at(3s));
  ASSERT_EQ(all<Write>(copied).size(), 1u);
  EXPECT_EQ(all<Write>(copied)[0].record, "record");
  ASSERT_EQ(all<Commit>(core.handle(Written{1}, at(4s))).size(), 1u);
  EXPECT_EQ(core.newest(), std::nullopt) << "not before it is durable";
  EXPECT_EQ(all<Saved>(core.handle(Committed{1}, at(5s)))[0].version, (PolicyVersion{0, 5}));
  EXPECT_EQ(core.newest(), (PolicyVersion{0, 5}));
  EXPECT_FALSE(core.busy());
}

TEST(CheckpointCommit, WithAPreparedWriterTheCopyIsOrderedAtOnce) {
  CheckpointCommit core({});
  ASSERT_EQ(all<Prepare>(core.handle(WriterJoined{}, at(0s))).at(0).save, 1u);
  core.handle(Prepared{1}, at(1s));
  EXPECT_EQ(all<CopyState>(core.handle(Request{{0, 1}, ""}, at(2s))).at(0).save, 1u);
  core.handle(StateCopied{1, 0, {0, 1}}, at(3s));
  core.handle(Written{1}, at(4s));
  EXPECT_EQ(all<Prepare>(core.handle(Committed{1}, at(5s))).at(0).save, 2u) << "the next one is prepared ahead";
  core.handle(Prepared{2}, at(6s));
  core.handle(WriterLost{"killed"}, at(7s));
  EXPECT_FALSE(has<CopyState>(core.handle(Request{{0, 2}, ""}, at(8s)))) << "its memory died with it";
  EXPECT_EQ(all<Prepare>(core.handle(WriterJoined{}, at(9s))).at(0).save, 2u);
  EXPECT_TRUE(has<CopyState>(core.handle(Prepared{2}, at(10s))));
  EXPECT_TRUE(has<Abort>(core.handle(WriterLost{"killed"}, at(11s))));
}

TEST(CheckpointCommit, OneAtATime) {
  CheckpointCommit core({});
  play(core, {0, 1}, 2);
  const auto second = all<NotSaved>(core.handle(Request{{0, 2}, ""}, at(1s)));
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].error.code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(core.busy());
}

TEST(CheckpointCommit, AFailureInAnyPhaseLeavesThePreviousOne) {  // V17 a
  for (int phases = 1; phases <= 4; ++phases) {
    for (const bool by_deadline : {false, true}) {
      CheckpointCommit core({});
      play(core, {0, 1}, 5);
      play(core, {0, 2}, phases);
      const auto effects =
          by_deadline ? core.handle(Wake{}, at(1h)) : core.handle(Failed{2, "the writer died"}, at(1s));
      EXPECT_EQ(all<Abort>(effects).size(), 1u);
      ASSERT_EQ(all<NotSaved>(effects).size(), 1u);
      EXPECT_EQ(all<NotSaved>(effects)[0].error.code, by_deadline ? ErrorCode::kTimeout : ErrorCode::kUnavailable);
      EXPECT_EQ(core.newest(), (PolicyVersion{0, 1}));
      EXPECT_TRUE(core.handle(Committed{2}, at(2h)).empty()) << "late answers change nothing";
      play(core, {0, 3}, 5);
      EXPECT_EQ(core.newest(), (PolicyVersion{0, 3}));
    }
  }
}

TEST(CheckpointCommit, KeepsTheNewestAndRemovesOnlyAfterTheCommit) {  // V17 b
  CheckpointCommitOptions options;
  options.keep = 3;
  CheckpointCommit core(options);
  std::vector<std::size_t> counts;
  for (std::uint64_t step = 1; step <= 6; ++step) {
    const auto before_commit = play(core, {0, step}, 4);
    EXPECT_FALSE(has<Remove>(before_commit));
    const auto effects = core.handle(Committed{step}, at(0s));
    if (step > 3) {
      EXPECT_THAT(all<Remove>(effects).at(0).versions, ElementsAre(PolicyVersion{0, step - 3}));
    }
    counts.push_back(core.committed().size());
  }
  EXPECT_THAT(counts, ElementsAre(1, 2, 3, 3, 3, 3));
}

TEST(CheckpointCommit, ALeftoverOfAHigherStepHoldsNoPlace) {  // V17 c
  CheckpointCommitOptions options;
  options.keep = 1;
  CheckpointCommit core(options);
  core.handle(Found{{{0, 5000}}}, at(0s));
  for (const std::uint64_t step : {100, 200, 300, 400}) play(core, {0, step}, 5);
  EXPECT_THAT(core.committed(), ElementsAre(PolicyVersion{0, 400}));
  EXPECT_EQ(core.newest(), (PolicyVersion{0, 400}));
}

TEST(CheckpointCommit, NewestIsByNumberAndZeroKeepsAll) {  // V17 d, e
  CheckpointCommitOptions options;
  options.keep = 0;
  CheckpointCommit core(options);
  core.handle(Found{{{0, 900000}, {0, 100000}}}, at(0s));
  EXPECT_EQ(core.newest(), (PolicyVersion{0, 900000}));
  for (std::uint64_t step = 1; step <= 20; ++step) EXPECT_FALSE(has<Remove>(play(core, {0, 900000 + step}, 5)));
  EXPECT_EQ(core.committed().size(), 22u);
}

TEST(CheckpointCommit, ANewEpochAbortsAndFences) {
  CheckpointCommit core({});
  play(core, {0, 4}, 3);
  const auto effects = core.handle(NewEpoch{1, 1}, at(1s));
  EXPECT_EQ(all<NotSaved>(effects)[0].error.code, ErrorCode::kFenced);
  EXPECT_TRUE(core.handle(Written{1}, at(2s)).empty());
  EXPECT_EQ(all<NotSaved>(core.handle(Request{{0, 5}, ""}, at(3s)))[0].error.code, ErrorCode::kFenced);
  play(core, {1, 3}, 5);
  EXPECT_EQ(core.newest(), (PolicyVersion{1, 3}));
}

TEST(CheckpointCommit, ARankThatCopiedAnotherStepSpoilsTheSave) {
  CheckpointCommit core({}, 0, 2);
  core.handle(Request{{0, 5}, ""}, at(0s));
  core.handle(Prepared{1}, at(0s));
  core.handle(StateCopied{1, 0, {0, 5}}, at(0s));
  const auto effects = core.handle(StateCopied{1, 1, {0, 6}}, at(0s));
  EXPECT_TRUE(has<Abort>(effects));
  EXPECT_EQ(core.newest(), std::nullopt);
}

TEST(CheckpointCommit, ANewStageIsPreparedForAgainAndItsFirstSaveWaitsForIt) {
  CheckpointCommit core({}, 0, 1);
  core.handle(WriterJoined{}, at(0s));
  core.handle(Prepared{1}, at(0s)); // with the tensors of the stage before
  EXPECT_EQ(all<Prepare>(core.handle(LayoutUnknown{}, at(1s))).at(0).save, 1u);
  EXPECT_FALSE(has<CopyState>(core.handle(Request{{0, 5}, "{}"}, at(2s)))) << "the writer's memory may not fit";
  EXPECT_TRUE(has<CopyState>(core.handle(Prepared{1}, at(3s))));
}

} // namespace
} // namespace troupe::protocol
