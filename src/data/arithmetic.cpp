#include "data/arithmetic.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"
#include "data/split.h"
#include "data/word_problems.h"

namespace troupe::data {
namespace {

constexpr std::uint64_t kDistinctMax =
    4'000'000; // problem spaces up to here are counted, so that evaluation does not repeat

std::uint64_t operands(const ArithmeticOptions& o) {
  return static_cast<std::uint64_t>(o.operand_max - o.operand_min) + 1;
}

// The number of (operator, left, right) triples.
std::uint64_t space(const ArithmeticOptions& o) { return operands(o) * operands(o) * o.operators.size(); }

Problem sum(const ArithmeticOptions& o, std::uint64_t number) {
  const char op = o.operators[number % o.operators.size()];
  number /= o.operators.size();
  std::int64_t left = o.operand_min + static_cast<std::int64_t>(number % operands(o));
  std::int64_t right = o.operand_min + static_cast<std::int64_t>(number / operands(o) % operands(o));
  if (op == '-' && left < right) std::swap(left, right);
  const std::int64_t value = op == '+' ? left + right : op == '-' ? left - right : left * right;
  std::string question = o.question;
  question.replace(question.find("{expr}"), 6, std::to_string(left) + op + std::to_string(right));
  return {std::move(question), std::to_string(value)};
}

// Visits the whole space in an order that depends on the seed: i -> (a i + b) mod n with a and n coprime.
struct Permutation {
  std::uint64_t n, a, b;
  Permutation(std::uint64_t count, std::uint64_t seed)
      : n(count), a(mix64(seed, 1) % count), b(mix64(seed, 2) % count) {
    while (std::gcd(a, n) != 1) a = (a + 1) % n;
  }
  [[nodiscard]] std::uint64_t operator()(std::uint64_t i) const {
    return (a * i + b) % n; // below kDistinctMax squared: no overflow
  }
};

Problem evaluation_sum(const ArithmeticOptions& o, std::uint64_t seed, std::uint64_t index) {
  const Permutation permutation(space(o), seed);
  std::uint64_t found = 0;
  while (true) {
    for (std::uint64_t i = 0; i < space(o); ++i) {
      Problem problem = sum(o, permutation(i));
      if (split_of(problem.question, o.eval_fraction) == Split::kEval && found++ == index) return problem;
    }
    TROUPE_CHECK(found > 0, "check_options accepts no empty split");
    index %= found;
    found = 0;
  }
}

Problem draw(const ArithmeticOptions& o, Rng& rng) {
  return o.kind == "sums" ? sum(o, rng.below(space(o))) : word_problem(o, rng);
}

} // namespace

Status check_options(const ArithmeticOptions& o) {
  const auto wrong = [](std::string sentence) { return fail(ErrorCode::kInvalidArgument, std::move(sentence)); };
  if (!(o.eval_fraction >= 0 && o.eval_fraction < 1))
    return wrong("eval_fraction is " + std::to_string(o.eval_fraction) + "; it must be at least 0 and below 1");
  if (o.kind == "word_problems") {
    if (o.steps_min < 1 || o.steps_max > kWordProblemStepsMax || o.steps_min > o.steps_max)
      return wrong("steps_min and steps_max must be in order within 1.." + std::to_string(kWordProblemStepsMax));
    if (o.number_max < 5 || o.number_max > 10'000)
      return wrong("number_max is " + std::to_string(o.number_max) + "; it must be in 5..10000");
    return {};
  }
  if (o.kind != "sums") return wrong("kind is '" + o.kind + "'; arithmetic problems are of kind sums or word_problems");
  if (o.operand_min < 0 || o.operand_max > 1'000'000 || o.operand_min > o.operand_max)
    return wrong("operand_min and operand_max must be in order within 0..1000000");
  if (o.operators.empty() || o.operators.find_first_not_of("+-*") != std::string::npos)
    return wrong("operators is '" + o.operators + "'; it must hold some of + - *");
  if (o.question.find("{expr}") == std::string::npos)
    return wrong("question is '" + o.question + "'; it must hold {expr}");
  if (space(o) > kDistinctMax) return {};
  if (distinct_problems(o, Split::kTrain) == 0)
    return wrong("every problem falls into the evaluation split; lower eval_fraction or widen the operands");
  if (o.eval_fraction > 0 && distinct_problems(o, Split::kEval) == 0)
    return wrong("no problem falls into the evaluation split; raise eval_fraction or widen the operands");
  return {};
}

std::uint64_t distinct_problems(const ArithmeticOptions& o, Split split) {
  if (o.kind != "sums" || space(o) > kDistinctMax) return 0;
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < space(o); ++i) count += split_of(sum(o, i).question, o.eval_fraction) == split;
  return count;
}

Problem make_problem(const ArithmeticOptions& o, std::uint64_t seed, std::uint64_t index, Split split) {
  if (o.kind == "sums" && split == Split::kEval && space(o) <= kDistinctMax) return evaluation_sum(o, seed, index);
  Rng rng(seed, RngStream::kTask, index, static_cast<std::uint32_t>(split));
  // A fraction f of all problems is in the split: the loop ends after 1/f draws on average.
  while (true) {
    Problem problem = draw(o, rng);
    if (split_of(problem.question, o.eval_fraction) == split) return problem;
  }
}

} // namespace troupe::data
