#include "data/word_problems.h"

#include <array>
#include <string_view>

namespace troupe::data {
namespace {

constexpr std::array<std::string_view, 24> kNames = {
    "Anna",  "Ben",  "Carla", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jack", "Kenji", "Lily",
    "Maria", "Noah", "Olga",  "Paul",  "Rosa", "Sam",   "Tara",  "Umar", "Vera", "Will", "Yuki",  "Zoe"};
constexpr std::array<std::string_view, 16> kThings = {
    "apples", "books",  "marbles",  "stickers", "coins", "pencils", "cookies", "shells",
    "cards",  "stamps", "balloons", "flowers",  "eggs",  "buttons", "stones",  "candles"};

// What can happen. {p} is the person, {n} the number, {o} another person.
constexpr std::array<std::string_view, 4> kGain = {"{p} buys {n} more.", "{o} gives {p} {n} more.",
                                                   "{p} finds {n} more.", "{p} wins {n} more."};
constexpr std::array<std::string_view, 4> kLoss = {"{p} gives {n} to {o}.", "{p} loses {n}.", "{p} sells {n}.",
                                                   "{p} uses {n}."};
constexpr std::array<std::string_view, 2> kTimes = {"Then the number becomes {n} times as large.",
                                                    "A trade turns every one into {n}."};

template <std::size_t N>
std::string_view pick(const std::array<std::string_view, N>& list, Rng& rng) {
  return list[rng.below(N)];
}

std::string fill(std::string_view sentence, std::string_view person, std::string_view other, std::int64_t number) {
  std::string out;
  for (std::size_t i = 0; i < sentence.size(); ++i) {
    if (sentence[i] != '{') {
      out += sentence[i];
      continue;
    }
    const char what = sentence[i + 1];
    out += what == 'p' ? std::string(person) : what == 'o' ? std::string(other) : std::to_string(number);
    i += 2; // behind the closing brace
  }
  return out;
}

} // namespace

Problem word_problem(const ArithmeticOptions& options, Rng& rng) {
  const auto number = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(high - low + 1)));
  };
  const std::string_view person = pick(kNames, rng), things = pick(kThings, rng);
  std::string_view other = pick(kNames, rng);
  while (other == person) other = pick(kNames, rng);
  std::int64_t value = number(2, options.number_max);
  std::string story = std::string(person) + " has " + std::to_string(value) + " " + std::string(things) + ".";
  const std::int64_t steps = number(options.steps_min, options.steps_max);
  for (std::int64_t step = 0; step < steps; ++step) {
    // Gains and losses are common; a multiplication is rare and only of small numbers, so that the
    // answer stays of the same size.
    const std::uint64_t what = rng.below(8);
    if (what == 0 && value >= 2 && value * 2 <= options.number_max) {
      const std::int64_t times = number(2, std::min<std::int64_t>(5, options.number_max / value));
      story += " " + fill(pick(kTimes, rng), person, other, times);
      value *= times;
    } else if (what % 2 == 1 && value >= 2) {
      const std::int64_t lost = number(1, std::min<std::int64_t>(value - 1, options.number_max));
      story += " " + fill(pick(kLoss, rng), person, other, lost);
      value -= lost;
    } else {
      const std::int64_t gained = number(1, options.number_max);
      story += " " + fill(pick(kGain, rng), person, other, gained);
      value += gained;
    }
  }
  story += " How many " + std::string(things) + " does " + std::string(person) + " have now?";
  return {std::move(story), std::to_string(value)};
}

} // namespace troupe::data
