#include "protocol/weight_publication.h"

#include <gtest/gtest.h>

#include "protocol/support.h"

namespace troupe::protocol {
namespace {

using namespace publication;

const WorkerId kA = rollout_worker(0);
const WorkerId kB = rollout_worker(1);

PublicationOptions options() {
  PublicationOptions o;
  o.lease = 10s;
  o.leases_max = 2;
  return o;
}

/// Publishes a version whose slot is free; returns the slot.
std::uint32_t publish(WeightPublication& store, PolicyVersion version, TimePoint now) {
  const auto fill = all<FillSlot>(store.handle(Publish{version}, now));
  EXPECT_EQ(fill.size(), 1u);
  EXPECT_TRUE(has<Ready>(store.handle(Filled{fill[0].slot, version}, now)));
  return fill[0].slot;
}

TEST(WeightPublication, AlternatesItsTwoSlots) {
  WeightPublication store(options());
  EXPECT_EQ(publish(store, {0, 0}, at(0s)), 0u);
  EXPECT_EQ(publish(store, {0, 1}, at(1s)), 1u);
  EXPECT_EQ(publish(store, {0, 2}, at(2s)), 0u);
  EXPECT_EQ(store.newest(), (PolicyVersion{0, 2}));
}

TEST(WeightPublication, ASlotWaitsForItsLeases) {
  WeightPublication store(options());
  publish(store, {0, 0}, at(0s));
  const auto grant = all<Grant>(store.handle(Lease{kA, 1, {0, 0}}, at(0s)));
  ASSERT_EQ(grant.size(), 1u);
  EXPECT_EQ(grant[0].version, (PolicyVersion{0, 0}));
  publish(store, {0, 1}, at(1s));
  EXPECT_FALSE(has<FillSlot>(store.handle(Publish{{0, 2}}, at(2s)))) << "slot 0 is being read, slot 1 holds the newest";
  const auto effects = store.handle(LeaseEnded{kA, 1}, at(3s));
  ASSERT_EQ(all<FillSlot>(effects).size(), 1u);
  EXPECT_FALSE(has<RenewSlot>(effects)) << "the lease ended in order";
}

TEST(WeightPublication, ASlowReaderLosesItsSlotAndTakesTheNewerVersion) {
  WeightPublication store(options());
  publish(store, {0, 0}, at(0s));
  const Grant old = all<Grant>(store.handle(Lease{kA, 1, {0, 0}}, at(0s)))[0];
  publish(store, {0, 1}, at(1s));
  store.handle(Publish{{0, 2}}, at(2s));
  EXPECT_FALSE(has<Expired>(store.handle(Wake{}, at(9s))));
  const auto effects = store.handle(Wake{}, at(10s));
  EXPECT_EQ(all<Expired>(effects).size(), 1u);
  ASSERT_EQ(all<RenewSlot>(effects).size(), 1u);
  EXPECT_EQ(all<RenewSlot>(effects)[0].slot, old.slot);
  EXPECT_GT(all<RenewSlot>(effects)[0].generation, old.generation);
  ASSERT_EQ(all<FillSlot>(effects).size(), 1u);
  store.handle(Filled{0, {0, 2}}, at(11s));
  const Grant next = all<Grant>(store.handle(Lease{kA, 2, {0, 0}}, at(11s)))[0];
  EXPECT_EQ(next.version, (PolicyVersion{0, 2}));
  EXPECT_EQ(next.generation, old.generation + 1);
}

TEST(WeightPublication, RefusesWhatIsNotThereAndTooManyReaders) {
  WeightPublication store(options());
  EXPECT_EQ(all<Refuse>(store.handle(Lease{kA, 1, {0, 0}}, at(0s)))[0].error.code, ErrorCode::kUnavailable);
  publish(store, {0, 0}, at(0s));
  EXPECT_EQ(all<Refuse>(store.handle(Lease{kA, 2, {0, 1}}, at(0s)))[0].error.code, ErrorCode::kUnavailable);
  EXPECT_EQ(all<Refuse>(store.handle(Lease{kA, 3, {1, 0}}, at(0s)))[0].error.code, ErrorCode::kFenced);
  store.handle(Lease{kA, 4, {0, 0}}, at(0s));
  store.handle(Lease{kB, 1, {0, 0}}, at(0s));
  EXPECT_EQ(all<Refuse>(store.handle(Lease{rollout_worker(2), 1, {0, 0}}, at(0s)))[0].error.code,
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(store.leases(), 2u);
}

TEST(WeightPublication, RepeatedMessagesChangeNothing) {
  WeightPublication store(options());
  store.handle(Publish{{0, 0}}, at(0s));
  EXPECT_FALSE(has<FillSlot>(store.handle(Publish{{0, 0}}, at(0s))));
  store.handle(Filled{0, {0, 0}}, at(1s));
  EXPECT_FALSE(has<Ready>(store.handle(Filled{0, {0, 0}}, at(1s))));
  EXPECT_TRUE(has<Ready>(store.handle(Publish{{0, 0}}, at(2s)))) << "its answer was lost";
  const Grant first = all<Grant>(store.handle(Lease{kA, 7, {0, 0}}, at(2s)))[0];
  const Grant again = all<Grant>(store.handle(Lease{kA, 7, {0, 0}}, at(5s)))[0];
  EXPECT_EQ(first.deadline, again.deadline);
  EXPECT_EQ(store.leases(), 1u);
}

// The slot became free only after the trainer had made its next step: the older weights are gone, and nobody waits for them for ever.
TEST(WeightPublication, ACopyThatCameLateHoldsTheNewerVersion) {
  WeightPublication store(options());
  publish(store, {0, 0}, at(0s));
  store.handle(Lease{kA, 1, {0, 0}}, at(0s));
  publish(store, {0, 1}, at(1s));
  EXPECT_FALSE(has<FillSlot>(store.handle(Publish{{0, 2}}, at(2s))));
  const FillSlot fill = all<FillSlot>(store.handle(LeaseEnded{kA, 1}, at(3s)))[0];
  const auto ready = all<Ready>(store.handle(Filled{fill.slot, {0, 3}}, at(4s)));
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].version, (PolicyVersion{0, 3}));
  EXPECT_EQ(store.newest(), (PolicyVersion{0, 3}));
  const auto again = all<Ready>(store.handle(Publish{{0, 2}}, at(5s)));
  ASSERT_EQ(again.size(), 1u) << "asked for again: the newer one stands for it";
  EXPECT_EQ(again[0].version, (PolicyVersion{0, 3}));
  EXPECT_FALSE(has<Ready>(store.handle(Filled{fill.slot, {1, 9}}, at(6s)))) << "of another epoch, and not asked for";
}

TEST(WeightPublication, OlderEpochsAreFenced) {
  WeightPublication store(options());
  publish(store, {0, 5}, at(0s));
  store.handle(NewEpoch{1}, at(2s));
  EXPECT_EQ(store.newest(), std::nullopt) << "weights of a lost epoch are not given out";
  EXPECT_EQ(all<Rejected>(store.handle(Publish{{0, 6}}, at(3s)))[0].error.code, ErrorCode::kFenced);
  publish(store, {1, 3}, at(4s));
  EXPECT_EQ(all<Grant>(store.handle(Lease{kA, 1, {0, 6}}, at(5s)))[0].version, (PolicyVersion{1, 3}));
}

TEST(WeightPublication, AnEpochThatEndsDuringACopyDropsIt) {
  WeightPublication store(options());
  store.handle(Publish{{0, 1}}, at(0s));
  store.handle(NewEpoch{1}, at(1s));
  EXPECT_FALSE(has<FillSlot>(store.handle(Publish{{1, 0}}, at(2s)))) << "the memory is still being written";
  const auto effects = store.handle(Filled{0, {0, 1}}, at(3s));
  EXPECT_TRUE(has<Rejected>(effects));
  EXPECT_FALSE(has<Ready>(effects));
  EXPECT_EQ(all<FillSlot>(effects)[0].version, (PolicyVersion{1, 0}));
}

TEST(WeightPublication, AFailedCopyFreesItsSlot) {
  WeightPublication store(options());
  store.handle(Publish{{0, 0}}, at(0s));
  EXPECT_EQ(all<Rejected>(store.handle(FillFailed{0, {0, 0}, "no memory"}, at(1s)))[0].error.code,
            ErrorCode::kUnavailable);
  publish(store, {0, 0}, at(2s));
}

TEST(WeightPublication, ALeaseThatWasGivenUpRenewsItsSlot) {  // found by the simulator, seed 47
  WeightPublication store(options());
  publish(store, {0, 0}, at(0s));
  store.handle(Lease{kA, 1, {0, 0}}, at(0s));
  publish(store, {0, 1}, at(1s));
  EXPECT_EQ(all<Grant>(store.handle(Lease{kA, 2, {0, 0}}, at(2s)))[0].slot, 1u);
  EXPECT_TRUE(has<RenewSlot>(store.handle(Publish{{0, 2}}, at(3s)))) << "the first transfer may still run";
}

TEST(WeightPublication, TheDeadHoldNoLeases) {
  WeightPublication store(options());
  publish(store, {0, 0}, at(0s));
  store.handle(Lease{kA, 1, {0, 0}}, at(0s));
  store.handle(ReaderGone{kA}, at(1s));
  EXPECT_EQ(store.leases(), 0u);
}

TEST(HeldWeights, LoadsForwardOnlyAndKeepsTheOldOnAWrongDigest) {  // S21
  HeldWeights held;
  ASSERT_TRUE(held.accept({0, 1}, {}, 7, 7));
  ASSERT_TRUE(held.accept({0, 2}, PolicyVersion{0, 1}, 8, 8));
  EXPECT_EQ(held.accept({0, 2}, PolicyVersion{0, 1}, 8, 8).error().code, ErrorCode::kAlreadyExists) << "a delta twice";
  EXPECT_EQ(held.accept({0, 4}, PolicyVersion{0, 3}, 9, 9).error().code, ErrorCode::kUnavailable)
      << "a delta over a gap";
  EXPECT_EQ(held.accept({0, 3}, PolicyVersion{0, 2}, 9, 10).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(held.version(), (PolicyVersion{0, 2})) << "the old weights stay";
  ASSERT_TRUE(held.accept({1, 0}, {}, 1, 1)) << "full weights of a new epoch";
  EXPECT_EQ(held.offer({0, 9}, {}).error().code, ErrorCode::kFenced);
}

} // namespace
} // namespace troupe::protocol
