#include "rl/reward.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "rl/answer.h"

namespace troupe::rl {
namespace {

Score grade(const RewardOptions& options, std::string_view reply, std::string_view answer) {
  const auto reward = make_reward(options);
  EXPECT_TRUE(reward) << (reward ? "" : reward.error().message);
  const auto score = (*reward)->score(reply, answer);
  EXPECT_TRUE(score) << (score ? "" : score.error().message);
  return *score;
}

RewardOptions of(std::string type, std::string marker = "") {
  RewardOptions o;
  o.type = std::move(type), o.marker = std::move(marker);
  return o;
}

std::string extracted(std::string_view reply) { return std::string(last_box(reply).value_or("(none)")); }

// V14, boxes.
TEST(Boxed, BracesAreBalancedAndTheLastBoxCounts) {
  EXPECT_EQ(extracted("so \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
  EXPECT_EQ(extracted("\\boxed{3} then \\boxed{7}"), "7");
  EXPECT_EQ(extracted("\\boxed{\\frac{1}{2}"), "(none)");
  EXPECT_EQ(extracted("\\boxed{3} but \\boxed{\\frac{1}{2}"), "(none)"); // the last one is never finished
  EXPECT_EQ(extracted("<answer>\\boxed{42}</answer>"), "42");
  EXPECT_EQ(extracted("\\boxed {a\\}b}"), "a\\}b");
  EXPECT_EQ(extracted("\\fbox{9}"), "9");
  EXPECT_EQ(extracted("\\boxed{1} and the word \\boxed alone"), "1");
  EXPECT_EQ(extracted(""), "(none)");
  EXPECT_EQ(extracted("\\boxed"), "(none)");
  EXPECT_EQ(extracted("\\boxed{"), "(none)");
}

TEST(Boxed, EqualAnswersInDifferentDress) {
  const std::pair<const char*, const char*> same[] = {
      {"\\frac{1}{2}", "1/2"}, {"\\frac{1}{2}", "0.5"},  {"\\frac12", "\\frac{1}{2}"},  {"\\dfrac{1}{2}", ".5"},   {"\\text{13}", "13"},
      {"1{,}234", "1234"},     {"1,234", "1234"},        {"-\\frac{3}{6}", "-1/2"},     {"x = 5", "x=5"},          {"50\\%", "50"},
      {"\\$5.00", "5"},        {"\\left(1, 2\\right)", "(1,2)"}, {"90^\\circ", "90"},   {"\\frac{-1}{2}", "-0.5"}, {"5.", "5"},
      {"\\mathrm{\\text{yes}}", "yes"}, {"\\frac{1}{-2}", "-1/2"}};
  for (const auto& [a, b] : same) {
    EXPECT_TRUE(same_answer(a, b)) << a << " = " << b;
    EXPECT_TRUE(same_answer(b, a)) << b << " = " << a;
  }
  const std::pair<const char*, const char*> different[] = {
      {"\\frac{1}{2}", "\\frac{1}{3}"}, {"\\frac{1}{23}", "\\frac{12}{3}"}, {"12", "21"}, {"", "0"}, {"\\frac{1}{0}", "1"},
      {"1e39", "1"},                    {"\\frac", "1"},                    {"{", "}"},   {"-5", "5"}};
  for (const auto& [a, b] : different) EXPECT_FALSE(same_answer(a, b)) << a << " != " << b;
}

TEST(Boxed, Scores) {
  EXPECT_EQ(grade(of("boxed"), "\\boxed{\\frac{1}{2}}", "\\frac{1}{2}").value, 1);
  EXPECT_EQ(grade(of("boxed"), "\\boxed{\\frac{1}{2}}", "\\boxed{0.5}").value, 1);
  EXPECT_EQ(grade(of("boxed"), "\\boxed{\\frac{1}{2}}", "\\frac{1}{3}").value, 0);
  EXPECT_TRUE(grade(of("boxed"), "\\boxed{\\frac{1}{2}}", "\\frac{1}{3}").answered);
  for (const char* none : {"", "42", "\\boxed{}", "\\boxed{ }", "\\boxed{1"}) EXPECT_FALSE(grade(of("boxed"), none, "1").answered) << none;
}

// V14, numbers.
TEST(Number, AfterTheLastMarker) {
  const RewardOptions marked = of("number", "####");
  EXPECT_EQ(grade(marked, "2+40=42\n#### 42\n" + std::string(480, 'x'), "42").value, 1);
  const Score twice = grade(marked, "#### 42\nno,\n#### 43", "43");
  EXPECT_EQ(twice.value, 1);
  EXPECT_EQ(twice.extracted, "43");
  for (const char* none : {"", "42", "so ####", "so ####\n\nmore text 42", "#### none"}) {
    const Score s = grade(marked, none, "42");
    EXPECT_FALSE(s.answered) << none;
    EXPECT_EQ(s.value, 0);
  }
}

TEST(Number, TheLastNumberWhole) {
  struct Case {
    const char *reply, *answer, *extracted;
    double value;
  };
  const Case cases[] = {
      {"it costs $1,234.00 in all", "1234", "$1,234.00", 1},
      {"1,234", "1234", "1,234", 1},
      {"Reward: 10", "10", "10", 1},
      {"Reward: 10", "1", "10", 0},
      {"3 + 4 is 7.", "7", "7", 1},
      {"it is -5", "-5", "-5", 1},
      {"x=-5", "-5", "-5", 1},
      {"10-3", "3", "3", 1},
      {"\xe2\x88\x92" "8", "-8", "\xe2\x88\x92" "8", 1},
      {"-$7.50", "-7.5", "-$7.50", 1},
      {"a half, 1/2", "0.5", "1/2", 1},
      {"1, 2, 3", "3", "3", 1},
      {"12,34", "34", "34", 1},
      {"1e3", "1000", "1e3", 1},
      {"007", "7", "007", 1},
      {".25", "1/4", ".25", 1},
      {"2.50", "2.5", "2.50", 1},
      {"\xe2\x82\xac" "3", "3", "\xe2\x82\xac" "3", 1},
      {"9007199254740993", "9007199254740992", "9007199254740993", 0}, // equal as doubles
  };
  for (const Case& c : cases) {
    const Score s = grade(of("number"), c.reply, c.answer);
    EXPECT_EQ(s.value, c.value) << c.reply;
    EXPECT_EQ(s.extracted, c.extracted) << c.reply;
  }
  EXPECT_FALSE(grade(of("number"), "no digits here", "1").answered);
  EXPECT_EQ(grade(of("number"), std::string(5000, '9'), "1").value, 0);
}

TEST(Number, Tolerance) {
  RewardOptions o = of("number");
  o.tolerance = 0.01;
  EXPECT_EQ(grade(o, "3.14", "3.141").value, 1);
  EXPECT_EQ(grade(o, "3.2", "3.141").value, 0);
}

TEST(Number, AReferenceThatIsNoNumberIsAnError) {
  const auto reward = make_reward(of("number"));
  const auto s = (*reward)->score("1", "n/a");
  ASSERT_FALSE(s);
  EXPECT_NE(s.error().message.find("n/a"), std::string::npos);
}

TEST(Number, WholeTextOrNothing) {
  for (const char* bad : {"", "-", "$", "1 2", "12abc", "1,23", "--1", "1/", "1.2.3", "e5", "0x10", "1e99", "nan", "inf"})
    EXPECT_FALSE(parse_number(bad).has_value()) << bad;
  EXPECT_EQ(parse_number(" +1/3 "), (Rational{1, 3}));
  EXPECT_EQ(parse_number("5 %"), (Rational{5, 1}));
  EXPECT_EQ(parse_number("0"), (Rational{0, 1}));
  EXPECT_EQ(parse_number("-0.50"), (Rational{-1, 2}));
}

TEST(Exact, TrimmedMarkedAndCase) {
  EXPECT_EQ(grade(of("exact"), " Paris\n", "Paris").value, 1);
  EXPECT_EQ(grade(of("exact"), "paris", "Paris").value, 0);
  RewardOptions o = of("exact", "Answer:");
  o.ignore_case = true;
  EXPECT_EQ(grade(o, "I think.\nAnswer: PARIS \nbye", "Paris").value, 1);
  EXPECT_FALSE(grade(o, "Paris", "Paris").answered);
  EXPECT_FALSE(grade(of("exact"), "  ", "Paris").answered);
}

TEST(Regex, GroupAgainstAnswerOrMatchAlone) {
  RewardOptions o = of("regex");
  o.pattern = R"(answer is (\w+))";
  EXPECT_EQ(grade(o, "answer is no, the answer is yes", "yes").value, 1);
  EXPECT_EQ(grade(o, "the answer is yes, the answer is no", "yes").value, 0);
  EXPECT_FALSE(grade(o, "yes", "yes").answered);
  o.pattern = "^<think>";
  EXPECT_EQ(grade(o, "<think> hm", "whatever").value, 1);
  EXPECT_EQ(grade(o, "hm <think>", "whatever").value, 0);
  o.pattern = "x*"; // empty matches end
  EXPECT_EQ(grade(o, "abc", "").value, 1);
  o.pattern = "a";
  EXPECT_EQ(grade(o, "\xff\xfe", "").value, 0); // not UTF-8
}

TEST(Regex, BadAndHostilePatternsAreErrors) {
  RewardOptions o = of("regex");
  EXPECT_FALSE(make_reward(o));
  o.pattern = "a(b";
  const auto bad = make_reward(o);
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("offset 3"), std::string::npos) << bad.error().message;
  o.pattern = "(a+)+$";
  const auto reward = make_reward(o);
  const auto s = (*reward)->score(std::string(64, 'a') + "!", "");
  ASSERT_FALSE(s);
  EXPECT_EQ(s.error().code, ErrorCode::kResourceExhausted);
}

TEST(Sum, WeightsParts) {
  RewardOptions o = of("sum");
  EXPECT_FALSE(make_reward(o));
  RewardOptions format = of("regex"), right = of("number");
  format.pattern = "####", format.weight = 0.25;
  right.weight = 0.75;
  o.parts = {right, format};
  EXPECT_EQ(grade(o, "#### 4", "4").value, 1);
  EXPECT_EQ(grade(o, "#### 5", "4").value, 0.25);
  EXPECT_EQ(grade(o, "4", "4").value, 0.75);
  EXPECT_EQ(grade(o, "", "4").value, 0);
  o.parts = {of("sum")};
  EXPECT_FALSE(make_reward(o));
  EXPECT_NE(make_reward(of("nubmer")).error().message.find("exact, number, regex, boxed, sum"), std::string::npos);
}

// Contract of every row: whatever a model writes, the grader answers, and emptiness is "no answer".
TEST(RewardContract, NoReplyIsAnException) {
  Rng rng(3, RngStream::kTest);
  const std::string_view pieces[] = {"\\boxed{", "}", "{", "\\frac", "1", ",", ".", "-", "$", "####", "\n", "\\text{", "/", "e", "\\", "\xe2", "%"};
  for (const RewardRow& row : rewards()) {
    RewardOptions o = of(std::string(row.type));
    o.pattern = "(\\d+)";
    o.parts = {of("boxed"), of("number")};
    const auto reward = make_reward(o);
    ASSERT_TRUE(reward) << row.type;
    EXPECT_FALSE((*reward)->score("", "1")->answered) << row.type;
    for (int i = 0; i < 2000; ++i) {
      std::string reply;
      for (std::uint64_t n = rng.below(12); n > 0; --n) reply += pieces[rng.below(std::size(pieces))];
      const auto s = (*reward)->score(reply, "1");
      ASSERT_TRUE(s) << row.type << ": " << reply;
      ASSERT_TRUE(s->value == 0 || s->answered) << row.type << ": " << reply;
    }
  }
}

} // namespace
} // namespace troupe::rl
