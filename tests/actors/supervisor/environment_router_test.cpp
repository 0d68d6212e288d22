#include "actors/supervisor/environment_router.h"

#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

struct RouterTest : testing::Test {
  std::vector<EnvironmentReplies> replies;
  std::vector<std::pair<std::string, EnvironmentCalls>> forwarded;
  EnvironmentRouter router{[this](EnvironmentReplies r) { replies.push_back(std::move(r)); },
                           [this](const std::string& to, EnvironmentCalls c) { forwarded.emplace_back(to, std::move(c)); }};

  static EnvironmentCalls calls(const std::string& worker, std::vector<std::uint64_t> numbers) {
    EnvironmentCalls out{worker, 0, {}};
    for (const auto n : numbers) {
      EnvironmentCall call;
      call.call = call.episode = n;
      out.calls.push_back(call);
    }
    return out;
  }
  static EnvironmentReplies answers(const std::string& worker, std::vector<std::uint64_t> numbers) {
    EnvironmentReplies out{worker, 0, {}};
    for (const auto n : numbers) {
      EnvironmentReply reply;
      reply.call = n;
      reply.ok = true;
      out.replies.push_back(reply);
    }
    return out;
  }
};

TEST_F(RouterTest, CallsWaitForARunnerAndGoOutOnce) {
  router.ask(calls("rollout/0", {1, 2}));
  EXPECT_TRUE(forwarded.empty());
  router.runner_joined("environment/0");
  ASSERT_EQ(forwarded.size(), 1u);
  EXPECT_EQ(forwarded[0].second.calls.size(), 2u);
  router.answered(answers("rollout/0", {1, 2}));
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(router.open(), 0u);
}

TEST_F(RouterTest, ADeadRunnersCallsGoToAnother) {
  router.runner_joined("environment/0");
  router.runner_joined("environment/1");
  router.ask(calls("rollout/0", {1, 2, 3, 4}));
  forwarded.clear();
  router.runner_gone("environment/0");
  ASSERT_EQ(forwarded.size(), 1u);
  EXPECT_EQ(forwarded[0].first, "environment/1");
  EXPECT_EQ(forwarded[0].second.calls.size(), 2u);
  EXPECT_TRUE(replies.empty()) << "nobody is told of a death that was made good";
}

TEST_F(RouterTest, ALateAnswerOfADeadRunnerIsGivenOnce) {
  router.runner_joined("environment/0");
  router.ask(calls("rollout/0", {1}));
  router.runner_gone("environment/0");
  router.answered(answers("rollout/0", {1})); // was on its way: as good as any
  router.runner_joined("environment/0");
  router.answered(answers("rollout/0", {1}));
  EXPECT_EQ(replies.size(), 1u);
}

TEST_F(RouterTest, ADeadWorkersCallsAreForgotten) {
  router.ask(calls("rollout/0", {1}));
  router.worker_gone("rollout/0");
  router.runner_joined("environment/0");
  EXPECT_TRUE(forwarded.empty());
}

} // namespace
} // namespace troupe::actors
