#include "protocol/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/support.h"

namespace troupe::protocol {
namespace {

using namespace membership;
using testing::HasSubstr;

constexpr NodeId kNode1{1};
constexpr NodeId kNode2{2};

/// A membership whose agents obey: workers register and serve as soon as they are started.
class Company {
 public:
  explicit Company(MembershipOptions options = {}) : core(options) {}

  std::vector<Effect> send(const Event& event) {
    std::vector<Effect> seen;
    std::vector<Event> queue{event};
    while (!queue.empty()) {
      const Event next = queue.front();
      queue.erase(queue.begin());
      for (Effect& effect : core.handle(next, now)) {
        if (const auto* start = std::get_if<StartWorker>(&effect); start != nullptr && obedient) {
          queue.push_back(Registered{start->worker});
          queue.push_back(Serving{start->worker});
        }
        seen.push_back(std::move(effect));
      }
    }
    return seen;
  }
  std::vector<Effect> wait(Duration d) {
    now += d;
    return send(Wake{});
  }
  void heartbeat() {
    std::vector<WorkerId> ids;
    for (const auto& [id, member] : core.members()) ids.push_back(id);
    for (const WorkerId id : ids) send(Heard{id});
  }
  std::vector<Effect> scale(std::uint32_t count) { return send(SetWanted{Role::kRollout, count, ++generation}); }
  std::uint32_t serving() const { return core.count(Role::kRollout, MemberState::kServing); }

  Membership core;
  TimePoint now = at(0s);
  bool obedient = true;
  std::uint64_t generation = 0;
};

TEST(Membership, SparesAreKeptBeyondTheWantedWhileAnyAre) {
  MembershipOptions options;
  options.spares = 2;
  Company c(options);
  c.send(NodeJoined{kNode1});
  c.scale(3);
  EXPECT_EQ(c.serving(), 5u);
  c.send(SetWanted{Role::kEnvironment, 1, 1});
  EXPECT_EQ(c.core.count(Role::kEnvironment, MemberState::kServing), 1u) << "rollouts only";
  EXPECT_EQ(c.core.wanted(Role::kRollout), 3u);
  const auto drained = all<DrainWorker>(c.scale(0));
  EXPECT_EQ(drained.size(), 5u) << "nobody is kept for no work";
}

TEST(Membership, StartsWhatIsWantedSpreadOverTheNodes) {
  Company c;
  EXPECT_FALSE(has<StartWorker>(c.scale(3))) << "there is no machine yet";
  c.send(NodeJoined{kNode1});
  EXPECT_EQ(c.serving(), 3u);
  c.send(NodeJoined{kNode2});
  const auto started = all<StartWorker>(c.scale(5));
  ASSERT_EQ(started.size(), 2u);
  EXPECT_EQ(started[0].node, kNode2);
  EXPECT_EQ(started[1].node, kNode2);
  EXPECT_EQ(started[1].worker, rollout_worker(4));
}

TEST(Membership, TheLastScaleWinsWhateverTheOrderOfArrival) {
  Company c;
  c.send(NodeJoined{kNode1});
  c.send(SetWanted{Role::kRollout, 2, 7});
  const auto late = c.send(SetWanted{Role::kRollout, 9, 6});
  ASSERT_EQ(all<ScaleRefused>(late).size(), 1u);
  EXPECT_EQ(all<ScaleRefused>(late)[0].error.code, ErrorCode::kFenced);
  EXPECT_EQ(c.core.wanted(Role::kRollout), 2u);
  EXPECT_EQ(all<ScaleRefused>(c.send(SetWanted{Role::kRollout, 5000, 8}))[0].error.code, ErrorCode::kInvalidArgument);
}

TEST(Membership, ScalingDownDrainsTheHighestIndexFirst) {
  Company c;
  c.send(NodeJoined{kNode1});
  c.scale(3);
  const auto effects = c.scale(1);
  const auto drains = all<DrainWorker>(effects);
  ASSERT_EQ(drains.size(), 2u);
  EXPECT_EQ(drains[0].worker, rollout_worker(2));
  EXPECT_EQ(drains[0].deadline, c.now + 10s);
  EXPECT_TRUE(has<StopWorker>(c.send(Empty{rollout_worker(2)})));
  const auto gone = all<Gone>(c.send(Exited{rollout_worker(2), "exit code 0"}));
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_FALSE(gone[0].unexpected);
}

TEST(Membership, ADrainingWorkerThatDiesIsNotReplaced) {
  Company c;
  c.send(NodeJoined{kNode1});
  c.scale(2);
  c.scale(1);
  const auto effects = c.send(Exited{rollout_worker(1), "killed by signal 9"});
  EXPECT_FALSE(has<StartWorker>(effects));
  c.heartbeat();
  EXPECT_FALSE(has<StartWorker>(c.wait(900ms)));
}

TEST(Membership, ScalingUpWhileOneDrainsStartsAnotherIndex) {
  Company c;
  c.send(NodeJoined{kNode1});
  c.scale(2);
  c.scale(1);
  const auto started = all<StartWorker>(c.scale(2));
  ASSERT_EQ(started.size(), 1u);
  EXPECT_EQ(started[0].worker, rollout_worker(2)) << "index 1 still drains; it is not called back";
  c.send(Exited{rollout_worker(1), "exit code 0"});
  const auto next = all<StartWorker>(c.scale(3));
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].worker, rollout_worker(1, 1)) << "same name, next incarnation";
}

TEST(Membership, DownAndUpInAnyOrderEndsWithTheLastCount) {
  for (const std::uint32_t last : {0u, 1u, 4u}) {
    Company c;
    c.send(NodeJoined{kNode1});
    for (const std::uint32_t count : {3u, 0u, 5u, 2u, last}) c.scale(count);
    for (int round = 0; round < 20; ++round) {
      std::vector<WorkerId> leaving;
      for (const auto& [id, member] : c.core.members()) {
        if (member.state == MemberState::kDraining) leaving.push_back(id);
      }
      for (const WorkerId id : leaving) c.send(Exited{id, "exit code 0"});
    }
    EXPECT_EQ(c.serving(), last);
    EXPECT_EQ(c.core.members().size(), last);
  }
}

TEST(Membership, SuspectAfterOneSecondDeadAfterThreeReplacedAfterTheExit) {
  Company c;
  c.send(NodeJoined{kNode1});
  c.scale(1);
  EXPECT_FALSE(has<Suspected>(c.wait(900ms)));
  EXPECT_TRUE(has<Suspected>(c.wait(100ms)));
  EXPECT_TRUE(has<Cleared>(c.send(Heard{rollout_worker(0)})));
  c.wait(1s);
  const auto dead = c.wait(2s);
  ASSERT_TRUE(has<KillWorker>(dead));
  EXPECT_FALSE(has<StartWorker>(dead)) << "the old process may still write";
  EXPECT_FALSE(has<Cleared>(c.send(Heard{rollout_worker(0)}))) << "a kill is not taken back";
  EXPECT_TRUE(has<KillWorker>(c.wait(2s))) << "repeated until confirmed";
  const auto exited = c.send(Exited{rollout_worker(0), "killed by signal 9"});
  EXPECT_TRUE(all<Gone>(exited)[0].unexpected);
  EXPECT_FALSE(has<StartWorker>(exited)) << "back-off";
  const auto started = all<StartWorker>(c.wait(200ms));
  ASSERT_EQ(started.size(), 1u);
  EXPECT_EQ(started[0].worker, rollout_worker(0, 1));
}

TEST(Membership, AReplacementSpareOfTheDeadIsForgottenWhenScaledAway) {
  Company c;
  c.send(NodeJoined{kNode1});
  c.scale(1);
  c.send(Exited{rollout_worker(0), "crash"});
  c.scale(0);
  EXPECT_FALSE(has<StartWorker>(c.wait(1h)));
}

TEST(Membership, UnfitWorkersAreKilledAndReplaced) {  // V20 c
  Company c;
  c.send(NodeJoined{kNode1});
  c.scale(1);
  const auto kill = all<KillWorker>(c.send(Unfit{rollout_worker(0), "it has not pulled e0.s3"}));
  ASSERT_EQ(kill.size(), 1u);
  const auto gone = all<Gone>(c.send(Exited{rollout_worker(0), "killed by signal 9"}));
  EXPECT_THAT(gone[0].reason, HasSubstr("it has not pulled e0.s3"));
  EXPECT_EQ(all<StartWorker>(c.wait(200ms)).size(), 1u);
}

TEST(Membership, TooManyRestartsEndWithTheWholeChain) {
  MembershipOptions options;
  options.restart.restarts_max = 2;
  Company c(options);
  c.send(NodeJoined{kNode1});
  c.scale(1);
  std::vector<Effect> last;
  for (std::uint32_t i = 0; i < 3; ++i) {
    last = c.send(Exited{rollout_worker(0, i), "cause " + std::to_string(i)});
    c.wait(1s);
  }
  ASSERT_EQ(all<GiveUp>(last).size(), 1u);
  EXPECT_THAT(all<GiveUp>(last)[0].reason,
              HasSubstr("rollout/0.0: cause 0; rollout/0.1: cause 1; rollout/0.2: cause 2"));
  EXPECT_TRUE(c.core.members().empty());
  c.scale(1);  // the user tries again
  EXPECT_EQ(c.core.members().size(), 1u);
}

TEST(Membership, ALostMachineIsNotTheWorkersFault) {
  MembershipOptions options;
  options.restart.restarts_max = 1;
  Company c(options);
  c.send(NodeJoined{kNode1});
  c.scale(4);
  c.send(NodeJoined{kNode2});
  const auto effects = c.send(NodeLost{kNode1, "cable"});
  EXPECT_FALSE(has<GiveUp>(effects));
  EXPECT_EQ(all<Gone>(effects).size(), 4u);
  EXPECT_EQ(all<StartWorker>(effects).size(), 4u);
  EXPECT_EQ(all<StartWorker>(effects)[0].node, kNode2);
}

TEST(Membership, ADrainedMachineHandsItsShareToOthers) {
  Company c;
  c.send(NodeJoined{kNode1});
  c.scale(2);
  c.send(NodeJoined{kNode2});
  const auto effects = c.send(NodeDraining{kNode1});
  EXPECT_EQ(all<DrainWorker>(effects).size(), 2u);
  const auto started = all<StartWorker>(effects);
  ASSERT_EQ(started.size(), 2u);
  EXPECT_EQ(started[0].node, kNode2);
}

TEST(Membership, EveryWaitEnds) {
  Company c;
  c.obedient = false;
  c.send(NodeJoined{kNode1});
  c.scale(1);
  EXPECT_TRUE(has<KillWorker>(c.wait(60s))) << "it never registered";
  c.send(Exited{rollout_worker(0), "killed"});
  c.wait(1s);
  c.send(Registered{rollout_worker(0, 1)});
  c.send(Serving{rollout_worker(0, 1)});
  c.scale(0);
  EXPECT_FALSE(has<KillWorker>(c.wait(10s)));
  EXPECT_TRUE(has<KillWorker>(c.wait(5s))) << "it never left";
}

TEST(Membership, AdoptedWorkersAreNotStartedAgain) {
  Company c;
  c.send(NodeJoined{kNode1});
  c.send(Adopt{rollout_worker(0, 4), kNode1});
  const auto started = all<StartWorker>(c.scale(2));
  ASSERT_EQ(started.size(), 1u);
  EXPECT_EQ(started[0].worker, rollout_worker(1));
  c.send(Exited{rollout_worker(0, 4), "crash"});
  const auto next = all<StartWorker>(c.wait(200ms));
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].worker, rollout_worker(0, 5));
}

TEST(Membership, MessagesOfOldIncarnationsChangeNothing) {
  Company c;
  c.send(NodeJoined{kNode1});
  c.scale(1);
  c.send(Exited{rollout_worker(0), "crash"});
  c.wait(1s);
  c.send(Exited{rollout_worker(0), "crash"});
  c.send(Heard{rollout_worker(0)});
  EXPECT_EQ(c.core.members().size(), 1u);
  EXPECT_EQ(c.serving(), 1u);
}

TEST(Membership, ABusyWorkThreadThatDoesNotMoveIsStuck) {
  MembershipOptions options;
  options.work_silence = 60s;
  Company c(options);
  c.send(NodeJoined{kNode1});
  c.scale(1);
  const WorkerId id = c.core.members().begin()->first;
  const auto pass = [&](Duration d, std::uint64_t moves, bool busy) { // the control actor answers all the time
    std::vector<Effect> seen;
    for (Duration t{}; t < d; t += 1s) {
      for (auto& e : c.wait(1s)) seen.push_back(e);
      c.heartbeat();
      for (auto& e : c.send(Worked{id, moves, busy})) seen.push_back(e);
    }
    return seen;
  };
  EXPECT_FALSE(has<KillWorker>(pass(100s, 5, false))) << "it waits for work";
  EXPECT_FALSE(has<KillWorker>(pass(50s, 5, true)));
  EXPECT_FALSE(has<KillWorker>(pass(50s, 6, true))) << "it moved";
  const auto effects = pass(62s, 6, true);
  ASSERT_TRUE(has<KillWorker>(effects));
  EXPECT_THAT(all<KillWorker>(effects)[0].reason, HasSubstr("stuck"));
}

// A clock that is put back makes a timer come early. It is spent, so the next one must be asked for.
TEST(Membership, AWakeThatComesEarlyAsksForTheNextOne) {
  Company c;
  c.send(NodeJoined{kNode1});
  c.scale(1);
  c.send(Exited{rollout_worker(0), "crash"});
  const auto armed = all<ArmTimer>(c.send(Exited{rollout_worker(0), "crash"}));
  for (const Duration back : {10ms, 4000ms}) {
    c.now -= back;
    const auto again = all<ArmTimer>(c.send(Wake{}));
    ASSERT_EQ(again.size(), 1u) << "put back by " << format_duration(back);
    EXPECT_GT(again[0].at, c.now);
    if (!armed.empty()) EXPECT_EQ(again[0].at, armed.back().at);
  }
}

} // namespace
} // namespace troupe::protocol
