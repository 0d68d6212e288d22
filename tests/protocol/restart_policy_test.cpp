#include "protocol/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/support.h"

namespace troupe::protocol {
namespace {

TEST(RestartPolicy, BackOffDoublesUpToItsCap) {
  RestartOptions options;
  options.restarts_max = 20;
  RestartPolicy policy(options);
  std::vector<Duration> pauses;
  for (int i = 0; i < 10; ++i) {
    const auto verdict = policy.on_failure({"rollout/0.0", "crash", at(0s)});
    pauses.push_back(std::get<RestartAt>(verdict).at - at(0s));
  }
  EXPECT_EQ(pauses[0], 200ms);
  EXPECT_EQ(pauses[1], 400ms);
  EXPECT_EQ(pauses[7], 25600ms);
  EXPECT_EQ(pauses[8], 30s);
  EXPECT_EQ(pauses[9], 30s);
}

TEST(RestartPolicy, NeverMoreRestartsThanAllowedInAnyWindow) {
  RestartOptions options;
  options.restarts_max = 3;
  options.window = 10s;
  RestartPolicy policy(options);
  std::vector<TimePoint> restarts;
  for (int i = 0; i < 200; ++i) {
    const TimePoint now = at(std::chrono::milliseconds(i * 700));
    if (std::holds_alternative<RestartAt>(policy.on_failure({"x", "y", now}))) restarts.push_back(now);
  }
  ASSERT_GT(restarts.size(), 10u) << "it is allowed again when the window has passed";
  for (std::size_t i = 3; i < restarts.size(); ++i) EXPECT_GE(restarts[i] - restarts[i - 3], 10s);
}

TEST(RestartPolicy, EscalatesWithTheChain) {
  RestartOptions options;
  options.restarts_max = 1;
  RestartPolicy policy(options);
  std::ignore = policy.on_failure({"rank/0.0", "out of memory", at(0s)});
  const auto verdict = policy.on_failure({"rank/0.1", "killed by signal 9", at(1s)});
  ASSERT_TRUE(std::holds_alternative<Escalate>(verdict));
  EXPECT_THAT(std::get<Escalate>(verdict).reason,
              testing::HasSubstr("rank/0.0: out of memory; rank/0.1: killed by signal 9"));
}

TEST(PoisonTracker, TheSecondIdenticalFailureIsPoison) {
  PoisonTracker tracker;
  EXPECT_FALSE(tracker.second_identical("step 7", "loss is NaN"));
  EXPECT_FALSE(tracker.second_identical("step 7", "out of memory"));
  EXPECT_FALSE(tracker.second_identical("step 8", "loss is NaN"));
  EXPECT_TRUE(tracker.second_identical("step 7", "loss is NaN"));
  tracker.forget("step 7");
  EXPECT_FALSE(tracker.second_identical("step 7", "loss is NaN"));
}

TEST(PoisonTracker, RemembersABoundedNumber) {
  PoisonTracker tracker;
  for (std::size_t i = 0; i <= PoisonTracker::kEntriesMax; ++i) tracker.second_identical(std::to_string(i), "x");
  EXPECT_FALSE(tracker.second_identical("0", "x")) << "the oldest is forgotten";
  EXPECT_TRUE(tracker.second_identical("2", "x"));
}

} // namespace
} // namespace troupe::protocol
