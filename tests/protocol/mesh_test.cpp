#include "protocol/mesh.h"

#include <gmock/gmock.h>

#include "support.h"

namespace troupe::protocol {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using namespace mesh;

WorkerId rank(std::uint32_t index, std::uint32_t incarnation = 0) { return {Role::kRank, index, incarnation}; }

class MeshTest : public testing::Test {
 protected:
  std::vector<Effect> on(const Event& event, Duration when = 0s) { return core.handle(event, at(when)); }
  std::vector<Effect> want(std::uint32_t epoch) { return on(Wanted{{{epoch, 5}, std::nullopt, false}}); }
  // Two ranks, connected.
  void make_whole() {
    want(0);
    on(Joined{rank(0)});
    number = all<Build>(on(Joined{rank(1)})).at(0).mesh;
    on(Ready{number, 0});
    ASSERT_TRUE(has<Whole>(on(Ready{number, 1})));
  }
  Mesh core{2, 100, 4s};
  std::uint64_t number = 0;
};

TEST_F(MeshTest, IsBuiltWhenAllAreThereAndWholeWhenAllAreReady) {
  EXPECT_TRUE(on(Joined{rank(1)}).empty());
  EXPECT_TRUE(want(3).empty());
  const auto build = all<Build>(on(Joined{rank(0)}));
  ASSERT_EQ(build.size(), 1u);
  EXPECT_EQ(build[0].mesh, 101u);
  EXPECT_THAT(build[0].members, ElementsAre(rank(0), rank(1)));
  EXPECT_EQ(build[0].order.version, (PolicyVersion{3, 5}));
  EXPECT_FALSE(has<Whole>(on(Ready{101, 1})));
  EXPECT_FALSE(has<Whole>(on(Ready{101, 1}))) << "the same one again";
  EXPECT_FALSE(has<Whole>(on(Ready{100, 0}))) << "of another mesh";
  EXPECT_FALSE(has<Whole>(on(Ready{101, 2}))) << "there is no such rank";
  const auto whole = all<Whole>(on(Ready{101, 0}));
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].order.version, (PolicyVersion{3, 5}));
  EXPECT_TRUE(on(Ready{101, 0}).empty());
}

TEST_F(MeshTest, ADeathIsToldToTheOthersAndTheNextMeshWaitsForTheReplacement) {
  make_whole();
  const auto effects = on(Left{rank(1), "killed by signal 9", ""});
  ASSERT_EQ(effects.size(), 2u);
  const auto* abort = std::get_if<Abort>(&effects[0]);
  ASSERT_NE(abort, nullptr) << "before the run director decides";
  EXPECT_THAT(abort->members, ElementsAre(rank(0)));
  EXPECT_EQ(abort->reason, "rank/1 is gone: killed by signal 9");
  EXPECT_EQ(all<Lost>(effects)[0].who, "rank/1");
  EXPECT_TRUE(want(1).empty());
  const auto build = all<Build>(on(Joined{rank(1, 1)}));
  ASSERT_EQ(build.size(), 1u);
  EXPECT_EQ(build[0].mesh, number + 1);
  EXPECT_THAT(build[0].members, ElementsAre(rank(0), rank(1, 1)));
}

// The others may die of the same error, or be killed too: one loss, one new epoch.
TEST_F(MeshTest, TheDeathOfAnotherMemberOfALostMeshIsNoSecondLoss) {
  make_whole();
  EXPECT_TRUE(has<Lost>(on(Left{rank(1), "", "the gradient is not finite"})));
  want(1);
  EXPECT_TRUE(on(Left{rank(0), "", "the gradient is not finite"}).empty());
  on(Joined{rank(0, 1)});
  EXPECT_TRUE(has<Build>(on(Joined{rank(1, 1)})));
  EXPECT_TRUE(has<Lost>(on(Left{rank(0, 1), "killed", ""}))) << "but that of a member of the new one is";
}

TEST_F(MeshTest, ASurvivorOfALostMeshCountsFullyInTheNext) {
  make_whole();
  on(Left{rank(1), "killed", ""});
  want(1);
  ASSERT_TRUE(has<Build>(on(Joined{rank(1, 1)})));
  const auto effects = on(Left{rank(0), "killed", ""});
  ASSERT_EQ(all<Abort>(effects).size(), 1u);
  EXPECT_TRUE(has<Lost>(effects)) << "although it was a member of the one before";
}

TEST_F(MeshTest, ARankThatDiesBeforeItWasAMemberIsALossToo) {
  want(0);
  on(Joined{rank(0)});
  const auto effects = on(Left{rank(1), "exit code 1", "the model could not be loaded"});
  ASSERT_TRUE(has<Lost>(effects));
  EXPECT_EQ(all<Lost>(effects)[0].cause, "the model could not be loaded");
  EXPECT_FALSE(has<Abort>(effects)) << "nobody waits";
}

TEST_F(MeshTest, ABrokenCollectiveIsALossWhenNobodyIsFoundDead) {
  make_whole();
  const auto first = on(Broken{number, 0, "all_reduce: timed out"}, 10s);
  EXPECT_FALSE(has<Lost>(first));
  EXPECT_EQ(all<ArmTimer>(first).at(0).at, at(14s));
  EXPECT_FALSE(has<Lost>(on(Wake{}, 13s)));
  const auto effects = on(Wake{}, 14s);
  ASSERT_TRUE(has<Lost>(effects));
  EXPECT_THAT(all<Lost>(effects)[0].who, HasSubstr("rank/0: all_reduce: timed out"));
  EXPECT_EQ(all<Lost>(effects)[0].cause, "") << "no poison: links heal";
  EXPECT_THAT(all<Abort>(effects)[0].members, ElementsAre(rank(0), rank(1)));
  EXPECT_TRUE(has<Build>(want(1))) << "both are still there";
}

TEST_F(MeshTest, ADeathThatExplainsABrokenCollectiveIsTheLoss) {
  make_whole();
  on(Broken{number, 0, "connection closed"}, 10s);
  EXPECT_EQ(all<Lost>(on(Left{rank(1), "killed", ""}, 11s)).size(), 1u);
  want(1);
  on(Broken{number, 0, "connection closed"}, 12s); // said again, of the lost mesh
  EXPECT_TRUE(on(Wake{}, 20s).empty());
}

TEST_F(MeshTest, ADroppedMeshIsAborted) {
  make_whole();
  EXPECT_THAT(all<Abort>(on(Dropped{"a step took too long"})).at(0).members, ElementsAre(rank(0), rank(1)));
  EXPECT_TRUE(on(Dropped{"a step took too long"}).empty());
  EXPECT_TRUE(has<Build>(want(1)));
}

TEST_F(MeshTest, RanksBeyondTheRunAreNotPartOfIt) {
  want(0);
  on(Joined{rank(0)});
  EXPECT_FALSE(has<Build>(on(Joined{rank(2)})));
  EXPECT_TRUE(on(Left{rank(2), "scaled down", ""}).empty());
  EXPECT_TRUE(has<Build>(on(Joined{rank(1)})));
}

TEST(MeshStore, AnswersWhoWaitsWhenTheKeyComes) {
  MeshStore store;
  EXPECT_TRUE(store.open(7, 2).empty());
  EXPECT_TRUE(store.get(7, rank(0), 1, "a").empty());
  const auto answers = store.set(7, "a", "x");
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].to, rank(0));
  EXPECT_EQ(answers[0].request, 1u);
  EXPECT_EQ(answers[0].value, "x");
  EXPECT_EQ(store.get(7, rank(1), 4, "a").at(0).value, "x");
  EXPECT_TRUE(store.set(7, "a", "y").empty()) << "nobody waits any more";
}

TEST(MeshStore, OlderMeshesAreFenced) {
  MeshStore store;
  (void)store.open(7, 2);
  (void)store.set(7, "a", "old");
  (void)store.get(7, rank(1), 2, "b");
  const auto refused = store.open(8, 2);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].error->code, ErrorCode::kFenced);
  EXPECT_EQ(store.get(7, rank(0), 3, "a").at(0).error->code, ErrorCode::kFenced);
  (void)store.set(7, "a", "from the past");
  EXPECT_TRUE(store.get(8, rank(0), 4, "a").empty()) << "neither what was, nor what comes late";
  EXPECT_EQ(store.open(std::nullopt, 2).size(), 1u);
  EXPECT_EQ(store.get(8, rank(0), 5, "a").at(0).error->code, ErrorCode::kFenced);
}

TEST(MeshStore, IsBounded) {
  MeshStore store;
  (void)store.open(1, 1);
  for (std::size_t i = 0; i < 2 * MeshStore::kKeysPerRankMax; ++i) (void)store.set(1, std::to_string(i), "x");
  EXPECT_TRUE(store.get(1, rank(0), 1, std::to_string(MeshStore::kKeysPerRankMax)).empty()) << "there was no room for it";
  (void)store.set(1, "0", std::string(MeshStore::kValueBytesMax + 1, 'x'));
  EXPECT_EQ(store.get(1, rank(0), 2, "0").at(0).value, "x");
  for (std::uint64_t i = 0; i < 1000; ++i) (void)store.get(1, rank(0), 10 + i, "never");
  EXPECT_EQ(store.open(2, 1).size(), MeshStore::kWaitingPerRankMax);
}

} // namespace
} // namespace troupe::protocol
