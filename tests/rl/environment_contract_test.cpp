// Every row of rl/registry.cpp is held to the contract of rl/environment.h; a new row is tested by adding its options here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "rl/environment.h"

namespace troupe::rl {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string python_example() { return std::string(TROUPE_SOURCE_DIR) + "/examples/program_task/guess.py"; }

/// A JSONL file of sums for as long as the test runs.
class SumsFile {
 public:
  explicit SumsFile(const std::string& extra = "") : path_(fs::path(::testing::TempDir()) / ("troupe_sums_" + std::to_string(::getpid()) + ".jsonl")) {
    std::ofstream out(path_);
    for (int i = 0; i < 60; ++i) out << R"({"prompt": ")" << i << R"(+1=", "answer": ")" << i + 1 << "\"}\n";
    out << extra;
  }
  ~SumsFile() { fs::remove(path_); }
  SumsFile(const SumsFile&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

/// Working options for a row; a row without them fails the contract.
std::optional<TaskOptions> options_of(std::string_view type, const SumsFile& sums) {
  TaskOptions o;
  o.type = std::string(type);
  o.deadline = std::chrono::seconds(20);
  o.reward.type = "number";
  if (type == "arithmetic") return o;
  if (type == "jsonl") {
    o.jsonl.path = sums.path();
    o.jsonl.eval_fraction = 0.2;
    return o;
  }
  if (type == "program") {
    o.program.command = {"python3", python_example()};
    return o;
  }
  return std::nullopt;
}

/// An episode played with fixed replies, as text.
std::string transcript(Task& task, const ProblemId& problem) {
  auto episode = task.new_episode();
  const auto opening = episode->reset(problem);
  if (!opening) return "error: " + opening.error().message;
  std::string text;
  for (const Message& m : opening->messages) text += m.role + ": " + m.content + "\n";
  for (int turn = 0; turn < 20; ++turn) {
    const auto step = episode->step({"assistant", std::to_string(3 + 5 * turn)});
    if (!step) return text + "error: " + step.error().message;
    text += std::to_string(step->reward) + (step->done ? " done\n" : "\n");
    for (const Message& m : step->messages) text += m.role + ": " + m.content + "\n";
    if (step->done) return text;
  }
  return text + "endless";
}

class TaskContract : public ::testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    const auto options = options_of(tasks()[GetParam()].type, sums_);
    ASSERT_TRUE(options) << "no test options for " << tasks()[GetParam()].type;
    options_ = *options;
    auto task = make_task(options_);
    ASSERT_TRUE(task) << task.error().to_string();
    task_ = std::move(*task);
  }
  SumsFile sums_;
  TaskOptions options_;
  std::unique_ptr<Task> task_;
};

TEST_P(TaskContract, SameProblemSameSteps) {
  auto second = make_task(options_);
  ASSERT_TRUE(second);
  std::set<std::string> different;
  for (Split split : {Split::kTrain, Split::kEval})
    for (std::uint64_t index : {0, 1, 2, 3}) {
      const ProblemId id{11, split, index};
      const std::string once = transcript(*task_, id);
      EXPECT_THAT(once, HasSubstr("done")) << to_string(id);
      EXPECT_EQ(once, transcript(*task_, id));
      EXPECT_EQ(once, transcript(**second, id));
      different.insert(once);
    }
  EXPECT_GT(different.size(), 3u);
}

TEST_P(TaskContract, TheSeedChoosesTheProblems) {
  int equal = 0;
  for (std::uint64_t index = 0; index < 16; ++index)
    equal += transcript(*task_, {1, Split::kTrain, index}) == transcript(*task_, {2, Split::kTrain, index}) ? 1 : 0;
  EXPECT_LT(equal, 8);
}

TEST_P(TaskContract, StepsOnlyBetweenResetAndDone) {
  auto episode = task_->new_episode();
  EXPECT_EQ(episode->step({"assistant", "1"}).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(episode->reset({0, Split::kTrain, 0}));
  EXPECT_EQ(episode->reset({0, Split::kTrain, 0}).error().code, ErrorCode::kInvalidArgument);
  bool done = false;
  for (int i = 0; i < 20 && !done; ++i) {
    const auto step = episode->step({"assistant", "no number"});
    ASSERT_TRUE(step);
    done = step->done;
    EXPECT_EQ(step->messages.empty(), step->done);
  }
  EXPECT_TRUE(done);
  EXPECT_EQ(episode->step({"assistant", "1"}).error().code, ErrorCode::kInvalidArgument);
}

TEST_P(TaskContract, EpisodesMayOverlap) {
  auto a = task_->new_episode(), b = task_->new_episode();
  ASSERT_TRUE(a->reset({3, Split::kTrain, 0}));
  ASSERT_TRUE(b->reset({3, Split::kTrain, 1}));
  ASSERT_TRUE(b->step({"assistant", "7"}));
  ASSERT_TRUE(a->step({"assistant", "7"}));
}

TEST_P(TaskContract, TheSystemPromptComesFirst) {
  options_.system_prompt = "Be brief.";
  auto task = make_task(options_);
  const auto opening = (*task)->new_episode()->reset({0, Split::kTrain, 0});
  ASSERT_TRUE(opening);
  EXPECT_EQ(opening->messages.front(), (Message{"system", "Be brief."}));
  EXPECT_EQ(opening->messages.back().role, "user");
}

TEST_P(TaskContract, EvalSplitsEndWhereTheySay) {
  const auto size = task_->size(Split::kEval);
  if (!size) return;
  EXPECT_TRUE(task_->new_episode()->reset({0, Split::kEval, *size - 1}));
  EXPECT_EQ(task_->new_episode()->reset({0, Split::kEval, *size}).error().code, ErrorCode::kNotFound);
}

TEST_P(TaskContract, OptionsAreChecked) {
  TaskOptions o = options_;
  o.deadline = Duration::zero();
  EXPECT_FALSE(make_task(o));
  o = options_;
  o.reward_min = 2;
  EXPECT_FALSE(make_task(o));
}

INSTANTIATE_TEST_SUITE_P(Registry, TaskContract, ::testing::Range(std::size_t{0}, tasks().size()),
                         [](const auto& row) { return std::string(tasks()[row.param].type); });

TEST(Registry, UnknownTasksListTheKnownOnes) {
  TaskOptions o;
  o.type = "chess";
  EXPECT_THAT(make_task(o).error().message, HasSubstr("arithmetic, jsonl, program"));
}

TEST(ArithmeticTask, RightAndWrongReplies) {
  SumsFile unused;
  auto options = *options_of("arithmetic", unused);
  auto task = make_task(options);
  auto episode = (*task)->new_episode();
  const auto opening = episode->reset({0, Split::kEval, 0});
  ASSERT_TRUE(opening);
  int left = 0, right = 0;
  ASSERT_EQ(std::sscanf(opening->messages.back().content.c_str(), "%d+%d", &left, &right), 2) << opening->messages.back().content;
  EXPECT_EQ(episode->step({"assistant", "so " + std::to_string(left + right)})->reward, 1);
  auto again = (*task)->new_episode();
  ASSERT_TRUE(again->reset({0, Split::kEval, 0}));
  const auto step = again->step({"assistant", "hm"});
  EXPECT_EQ(step->reward, 0);
  EXPECT_FALSE(step->answered);
}

TEST(JsonlTask, EachRoundHasEveryRowOnceInItsOwnOrder) {
  SumsFile sums;
  auto task = make_task(*options_of("jsonl", sums));
  ASSERT_TRUE(task);
  const std::uint64_t n = *(*task)->size(Split::kTrain);
  EXPECT_EQ(n + *(*task)->size(Split::kEval), 60u);
  const auto prompt = [&](Split split, std::uint64_t index) { return (*task)->new_episode()->reset({5, split, index})->messages.back().content; };
  std::vector<std::string> first, second;
  for (std::uint64_t i = 0; i < n; ++i) first.push_back(prompt(Split::kTrain, i)), second.push_back(prompt(Split::kTrain, n + i));
  EXPECT_NE(first, second);
  const std::set<std::string> rows(first.begin(), first.end());
  EXPECT_EQ(rows.size(), n);
  EXPECT_EQ(std::set<std::string>(second.begin(), second.end()), rows);
  for (std::uint64_t i = 0; i < *(*task)->size(Split::kEval); ++i) EXPECT_FALSE(rows.contains(prompt(Split::kEval, i)));
}

TEST(JsonlTask, AnAnswerTheGraderCannotUseIsFoundAtTheStart) {
  SumsFile sums("{\"prompt\": \"1/0=\", \"answer\": \"undefined\"}\n");
  const auto task = make_task(*options_of("jsonl", sums));
  ASSERT_FALSE(task);
  EXPECT_THAT(task.error().to_string(), HasSubstr(sums.path() + ":61"));
  EXPECT_THAT(task.error().to_string(), HasSubstr("undefined"));
}

TEST(ProgramTask, TheExampleIsWonByHalving) {
  SumsFile unused;
  auto task = make_task(*options_of("program", unused));
  ASSERT_TRUE(task) << task.error().message;
  EXPECT_EQ((*task)->size(Split::kEval), 400u);
  for (std::uint64_t index = 0; index < 10; ++index) {
    auto episode = (*task)->new_episode();
    ASSERT_TRUE(episode->reset({1, Split::kTrain, index}));
    int low = 1, high = 31;
    for (;;) {
      const int guess = (low + high) / 2;
      const auto step = episode->step({"assistant", "I say " + std::to_string(guess)});
      ASSERT_TRUE(step);
      if (step->done) {
        EXPECT_GE(step->reward, 0.6 - 1e-9);
        break;
      }
      (step->messages.front().content == "Higher." ? low : high) = guess + (step->messages.front().content == "Higher." ? 1 : -1);
    }
  }
}

TEST(ProgramTask, TheExampleWithAToolIsWonByCallingIt) {
  TaskOptions o;
  o.type = "program";
  o.deadline = std::chrono::seconds(20);
  o.program.command = {"python3", std::string(TROUPE_SOURCE_DIR) + "/examples/tools/calculator.py"};
  auto task = make_task(o);
  ASSERT_TRUE(task) << task.error().message;
  auto episode = (*task)->new_episode();
  const auto opening = episode->reset({1, Split::kTrain, 3});
  ASSERT_TRUE(opening) << opening.error().message;
  EXPECT_THAT(opening->tools, HasSubstr(R"("name":"multiply")"));
  long long a = 0, b = 0;
  ASSERT_EQ(std::sscanf(opening->messages.back().content.c_str(), "What is %lld times %lld?", &a, &b), 2) << opening->messages.back().content;
  const auto call = [](const std::string& name, const std::string& arguments) {
    return Message{"assistant", "<calls>", R"({"answer":"","tool_calls":[{"type":"function","function":{"name":")" + name + R"(","arguments":)" + arguments + "}}]}"};
  };
  const auto wrong = episode->step(call("divide", "{}"));
  ASSERT_TRUE(wrong);
  EXPECT_THAT(wrong->messages.at(0).content, HasSubstr("there is no tool divide"));
  const auto told = episode->step(call("multiply", "{\"a\": " + std::to_string(a) + ", \"b\": " + std::to_string(b) + "}"));
  ASSERT_TRUE(told);
  EXPECT_FALSE(told->done);
  EXPECT_EQ(told->messages.at(0), (Message{"tool", std::to_string(a * b), R"({"name":"multiply"})"}));
  const auto answered = episode->step({"assistant", "<think>so</think> It is " + std::to_string(a * b), R"({"reasoning_content":"so","answer":"It is )" + std::to_string(a * b) + "\"}"});
  ASSERT_TRUE(answered);
  EXPECT_TRUE(answered->done);
  EXPECT_EQ(answered->reward, 1);
}

} // namespace
} // namespace troupe::rl
