#include "data/arithmetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "data/split.h"
#include "data/word_problems.h"

namespace troupe::data {
namespace {

using ::testing::HasSubstr;

// The value of "a+b=", read back from the question.
std::int64_t value_of(const std::string& question) {
  std::smatch m;
  EXPECT_TRUE(std::regex_search(question, m, std::regex(R"((\d+)([-+*])(\d+))"))) << question;
  const std::int64_t a = std::stoll(m[1]), b = std::stoll(m[3]);
  return m[2] == "+" ? a + b : m[2] == "-" ? a - b : a * b;
}

TEST(Arithmetic, SumsAreRightAndNeverNegative) {
  ArithmeticOptions options;
  options.operators = "+-*";
  options.question = "What is {expr}?";
  ASSERT_TRUE(check_options(options));
  for (const Split split : {Split::kTrain, Split::kEval})
    for (std::uint64_t i = 0; i < 500; ++i) {
      const Problem p = make_problem(options, 1, i, split);
      EXPECT_EQ(std::to_string(value_of(p.question)), p.answer) << p.question;
      EXPECT_GE(std::stoll(p.answer), 0);
      EXPECT_EQ(split_of(p.question, options.eval_fraction), split);
    }
}

TEST(Arithmetic, IsAFunctionOfSeedIndexAndSplit) {
  for (const char* kind : {"sums", "word_problems"}) {
    ArithmeticOptions options;
    options.kind = kind;
    const Problem p = make_problem(options, 1, 17, Split::kTrain);
    EXPECT_FALSE(make_problem(options, 1, 3, Split::kTrain).question.empty());
    EXPECT_EQ(make_problem(options, 1, 17, Split::kTrain).question, p.question);
    EXPECT_NE(make_problem(options, 2, 17, Split::kTrain).question, p.question);
    EXPECT_NE(make_problem(options, 1, 18, Split::kTrain).question, p.question);
  }
}

TEST(Arithmetic, TwoDigitSumsHaveFourHundredDifferentHeldOutProblems) {
  const ArithmeticOptions options;
  const std::uint64_t held_out = distinct_problems(options, Split::kEval);
  EXPECT_EQ(held_out + distinct_problems(options, Split::kTrain), 8100u);
  ASSERT_GE(held_out, 500u);
  std::set<std::string> eval, train;
  for (std::uint64_t i = 0; i < 500; ++i) eval.insert(make_problem(options, 3, i, Split::kEval).question);
  EXPECT_EQ(eval.size(), 500u);
  for (std::uint64_t i = 0; i < 3000; ++i) train.insert(make_problem(options, 3, i, Split::kTrain).question);
  EXPECT_GT(train.size(), 2000u);
  for (const auto& question : eval) EXPECT_FALSE(train.contains(question));
  EXPECT_EQ(make_problem(options, 3, held_out, Split::kEval).question,
            make_problem(options, 3, 0, Split::kEval).question)
      << "then it repeats";
}

// Follows the story: gains, losses and factors, in order.
std::int64_t solve(const std::string& story) {
  std::int64_t value = 0;
  const std::regex sentence_with_number(R"(([^.?]*?)(\d+)([^.?]*)[.?])");
  for (auto it = std::sregex_iterator(story.begin(), story.end(), sentence_with_number); it != std::sregex_iterator();
       ++it) {
    const std::string sentence = it->str();
    const std::int64_t n = std::stoll((*it)[2]);
    const auto has = [&](const char* word) { return sentence.find(word) != std::string::npos; };
    if (has(" has "))
      value = n;
    else if (has("times") || has("every one"))
      value *= n;
    else if (has(" more"))
      value += n;
    else
      value -= n;
  }
  return value;
}

TEST(Arithmetic, WordProblemsSayWhatTheirAnswerIs) {
  ArithmeticOptions options;
  options.kind = "word_problems";
  options.steps_min = 1, options.steps_max = kWordProblemStepsMax;
  ASSERT_TRUE(check_options(options));
  std::set<std::string> questions;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const Problem p = make_problem(options, 5, i, i % 2 ? Split::kTrain : Split::kEval);
    EXPECT_EQ(std::to_string(solve(p.question)), p.answer) << p.question;
    EXPECT_GT(std::stoll(p.answer), 0);
    EXPECT_EQ(p.question.find('{'), std::string::npos);
    questions.insert(p.question);
  }
  EXPECT_GT(questions.size(), 995u);
}

TEST(Arithmetic, RefusesOptionsByName) {
  const auto error = [](auto change) {
    ArithmeticOptions options;
    change(options);
    const auto status = check_options(options);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(error([](auto&) {}), "");
  EXPECT_THAT(error([](auto& o) { o.kind = "algebra"; }), HasSubstr("kind is 'algebra'"));
  EXPECT_THAT(error([](auto& o) { o.operators = "/"; }), HasSubstr("operators"));
  EXPECT_THAT(error([](auto& o) { o.operand_min = 5, o.operand_max = 4; }), HasSubstr("operand_min"));
  EXPECT_THAT(error([](auto& o) { o.question = "?"; }), HasSubstr("{expr}"));
  EXPECT_THAT(error([](auto& o) { o.eval_fraction = 1; }), HasSubstr("eval_fraction"));
  EXPECT_THAT(error([](auto& o) { o.operand_min = o.operand_max = 10; }), HasSubstr("split"));
  EXPECT_THAT(error([](auto& o) { o.kind = "word_problems", o.steps_max = 9; }), HasSubstr("steps_max"));
  EXPECT_THAT(error([](auto& o) { o.kind = "word_problems", o.number_max = 1; }), HasSubstr("number_max"));
}

} // namespace
} // namespace troupe::data
