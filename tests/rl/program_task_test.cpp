#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "rl/environment.h"
#include "rl/line_process.h"

namespace troupe::rl {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// Deadlines are generous where the answer is expected, short where it never comes.
TaskOptions bad(const std::string& mode, Duration deadline = std::chrono::seconds(20)) {
  TaskOptions o;
  o.type = "program";
  o.deadline = deadline;
  o.program.command = {"python3", std::string(TROUPE_SOURCE_DIR) + "/tests/rl/bad_program.py", mode};
  return o;
}

/// Resets an episode of a misbehaving program and returns the error of its first step.
Error first_step_error(const TaskOptions& options) {
  auto task = make_task(options);
  EXPECT_TRUE(task) << (task ? "" : task.error().message);
  auto episode = (*task)->new_episode();
  EXPECT_TRUE(episode->reset({0, Split::kTrain, 5}));
  auto step = episode->step({"assistant", "1"});
  EXPECT_FALSE(step);
  EXPECT_FALSE(episode->step({"assistant", "1"})); // over after an error
  return step ? Error{} : step.error();
}

bool no_children_left() { return ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD; }

// Rewards that are no finite number within bounds: errors of the task that name the problem, never a score.
TEST(ProgramTask, BadRewardsAreErrorsThatNameTheProblem) {
  for (const char* mode : {"nan", "infinite", "overflow", "range", "text", "no_done", "silent"}) {
    const Error error = first_step_error(bad(mode));
    EXPECT_EQ(error.code, ErrorCode::kCorrupt) << mode;
    EXPECT_THAT(error.message, HasSubstr("train problem 5")) << mode;
  }
  EXPECT_THAT(first_step_error(bad("nan")).message, HasSubstr("NaN"));
  EXPECT_THAT(first_step_error(bad("range")).message, HasSubstr("reward_max"));
}

TEST(ProgramTask, AHangEndsAtTheDeadlineAndTheGroupIsGone) {
  const auto begin = std::chrono::steady_clock::now();
  auto options = bad("hang_with_child", std::chrono::milliseconds(1500));
  const Error error = first_step_error(options);
  EXPECT_EQ(error.code, ErrorCode::kTimeout);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  const std::size_t at = error.message.find("child ");
  ASSERT_NE(at, std::string::npos) << error.message;
  const pid_t grandchild = std::atoi(error.message.c_str() + at + 6);
  // Killed with its group; it is init's to reap.
  bool gone = false;
  for (int i = 0; i < 200 && !gone; ++i) {
    const auto stat = read_file("/proc/" + std::to_string(grandchild) + "/stat");
    gone = !stat || stat->find(") Z ") != std::string::npos;
    if (!gone) ::usleep(10000);
  }
  EXPECT_TRUE(gone);
  EXPECT_TRUE(no_children_left());
}

TEST(ProgramTask, DeathIsReportedWithStatusAndLastWords) {
  const Error exit = first_step_error(bad("exit"));
  EXPECT_EQ(exit.code, ErrorCode::kUnavailable);
  EXPECT_THAT(exit.message, HasSubstr("exit status 3"));
  EXPECT_THAT(exit.message, HasSubstr("about to leave"));
  EXPECT_THAT(first_step_error(bad("throw")).message, HasSubstr("ValueError: no such puzzle"));
  EXPECT_TRUE(no_children_left());
}

TEST(ProgramTask, FloodsAreCapped) {
  const Error flood = first_step_error(bad("flood"));
  EXPECT_EQ(flood.code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(flood.message, HasSubstr("1 MiB"));
  // 12 MB on stderr do not block the program.
  auto task = make_task(bad("stderr_flood"));
  ASSERT_TRUE(task);
  auto episode = (*task)->new_episode();
  ASSERT_TRUE(episode->reset({}));
  const auto step = episode->step({"assistant", "x"});
  ASSERT_TRUE(step) << step.error().message;
  EXPECT_EQ(step->reward, 1);
}

TEST(ProgramTask, AnswersThatBreakTheProtocol) {
  EXPECT_THAT(first_step_error(bad("print")).message, HasSubstr("belongs on stderr"));
  EXPECT_THAT(first_step_error(bad("wrong_id")).message, HasSubstr("id of the request"));
  EXPECT_THAT(first_step_error(bad("deep")).message, HasSubstr("not JSON"));
  const Error reported = first_step_error(bad("reports"));
  EXPECT_EQ(reported.code, ErrorCode::kUnavailable);
  EXPECT_THAT(reported.message, HasSubstr("the puzzle is broken"));
}

TEST(ProgramTask, StartsThatFailSayWhy) {
  TaskOptions o = bad("x");
  o.program.command = {"/no/such/program"};
  auto task = make_task(o);
  ASSERT_FALSE(task);
  EXPECT_THAT(task.error().message, HasSubstr("cannot start \"/no/such/program\": No such file"));
  o.program.command = {};
  EXPECT_THAT(make_task(o).error().message, HasSubstr("task.command"));
  o = bad("x");
  o.program.folder = "/no/such/folder";
  EXPECT_THAT(make_task(o).error().message, HasSubstr("/no/such/folder"));
  EXPECT_THAT(make_task(bad("bad_hello")).error().message, HasSubstr("\"train\""));
  EXPECT_THAT(make_task(bad("die_at_hello")).error().message, HasSubstr("no data here"));
  EXPECT_TRUE(no_children_left());
}

TEST(ProgramTask, ACrashLosesOpenEpisodesAndTheNextResetStartsAnew) {
  auto task = make_task(bad("fail_once"));
  ASSERT_TRUE(task);
  auto crashing = (*task)->new_episode(), other = (*task)->new_episode();
  ASSERT_TRUE(crashing->reset({0, Split::kTrain, 1}));
  ASSERT_TRUE(other->reset({0, Split::kTrain, 2}));
  EXPECT_EQ(crashing->step({"assistant", "crash"}).error().code, ErrorCode::kUnavailable);
  const auto lost = other->step({"assistant", "1"});
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ErrorCode::kUnavailable);
  auto again = (*task)->new_episode();
  ASSERT_TRUE(again->reset({0, Split::kTrain, 1}));
  EXPECT_EQ(again->step({"assistant", "1"})->reward, 1);
  EXPECT_FALSE(other->step({"assistant", "1"})); // still lost in the new life
}

TEST(ProgramTask, RestartsHaveALimit) {
  const fs::path starts = fs::path(::testing::TempDir()) / ("troupe_starts_" + std::to_string(::getpid()));
  fs::remove(starts);
  TaskOptions o = bad("die_at_reset");
  o.program.command.push_back(starts.string());
  o.program.restarts = 2;
  auto task = make_task(o);
  ASSERT_TRUE(task);
  for (int i = 0; i < 3; ++i) EXPECT_THAT((*task)->new_episode()->reset({}).error().message, HasSubstr("exit status 4"));
  for (int i = 0; i < 2; ++i) EXPECT_THAT((*task)->new_episode()->reset({}).error().message, HasSubstr("failed 3 times in a row"));
  const auto lines = read_file(starts);
  EXPECT_EQ(std::count(lines->begin(), lines->end(), '\n'), 3); // the first start and two restarts
  fs::remove(starts);
}

TEST(ProgramTask, LeftEpisodesAreNamedWithTheNextReset) {
  auto task = make_task(bad("fail_once"));
  ASSERT_TRUE(task);
  {
    auto left = (*task)->new_episode();
    ASSERT_TRUE(left->reset({}));
  }
  const auto opening = (*task)->new_episode()->reset({0, Split::kTrain, 3});
  ASSERT_TRUE(opening);
  EXPECT_EQ(opening->messages.front().content, "problem 3 closed [1]");
}

TEST(ProgramTask, ToolsOfTheProgramHoldUnlessAProblemHasItsOwn) {
  auto task = make_task(bad("tools"));
  ASSERT_TRUE(task) << task.error().message;
  const auto tools_of = [&](std::uint64_t index) {
    const auto opening = (*task)->new_episode()->reset({0, Split::kTrain, index});
    return opening ? opening->tools : opening.error().message;
  };
  EXPECT_THAT(tools_of(0), HasSubstr("\"look\""));
  EXPECT_THAT(tools_of(1), HasSubstr("\"jump\""));
  EXPECT_EQ(tools_of(2), "") << "a problem without tools";
  EXPECT_THAT(tools_of(3), HasSubstr("has \"tools\" that are no list")) << "an error of the problem, and the program lives on";
  EXPECT_THAT(tools_of(0), HasSubstr("\"look\""));
  const auto bad_task = make_task(bad("bad_tools"));
  ASSERT_FALSE(bad_task);
  EXPECT_THAT(bad_task.error().message, HasSubstr("\"tools\""));
}

TEST(ProgramTask, FurtherFieldsOfMessagesGoBothWays) {
  auto task = make_task(bad("tools"));
  ASSERT_TRUE(task);
  auto episode = (*task)->new_episode();
  const auto opening = episode->reset({});
  ASSERT_TRUE(opening);
  EXPECT_EQ(opening->messages.at(1), (Message{"assistant", "", R"({"tool_calls":[{"function":{"arguments":{},"name":"look"},"type":"function"}]})"}));
  EXPECT_EQ(opening->messages.at(2), (Message{"tool", "a wall", R"({"name":"look","tool_call_id":"c1"})"})) << "and no field that no template reads";
  const auto step = episode->step({"assistant", "all of it", R"({"answer":"it","reasoning_content":"all","tool_calls":[1]})"});
  ASSERT_TRUE(step) << step.error().message;
  EXPECT_EQ(step->messages.at(0).content, "answer content reasoning_content role tool_calls") << "what the program was given";
}

TEST(ProgramTask, RepliesOfAnyBytesArrive) {
  auto task = make_task(bad("fail_once"));
  ASSERT_TRUE(task);
  auto episode = (*task)->new_episode();
  ASSERT_TRUE(episode->reset({}));
  const auto step = episode->step({"assistant", "\xff\xfe \n \"}"});
  EXPECT_TRUE(step) << (step ? "" : step.error().message);
}

TEST(LineProcess, AnAnswerBeyondThePipeAndARequestBeyondIt) {
  auto cat = LineProcess::start({{"cat"}, "", Bytes{4 << 20}, Bytes{1024}});
  ASSERT_TRUE(cat);
  const std::string big(2 << 20, 'x');
  const auto echoed = cat->call(big, std::chrono::seconds(30));
  ASSERT_TRUE(echoed) << echoed.error().message;
  EXPECT_EQ(*echoed, big);
  EXPECT_EQ(*cat->call("", std::chrono::seconds(30)), "");
  const pid_t pid = cat->pid();
  EXPECT_EQ(::getpgid(pid), pid);
  EXPECT_EQ(cat->stop(), "killed by signal 9");
  EXPECT_FALSE(cat->call("x", std::chrono::seconds(1)));
  EXPECT_EQ(::kill(pid, 0), -1);
}

} // namespace
} // namespace troupe::rl
