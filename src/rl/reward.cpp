#include "rl/reward.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "rl/answer.h"
#include "rl/reward_regex.h"

namespace troupe::rl {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n\f\v";
  const std::size_t from = text.find_first_not_of(kBlank);
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(kBlank) - from + 1);
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool same_text(std::string_view a, std::string_view b, bool ignore_case) {
  if (!ignore_case) return a == b;
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

Score scored(bool right, std::string_view extracted) { return {right ? 1.0 : 0.0, true, std::string(extracted)}; }

class ExactReward final : public Reward {
 public:
  explicit ExactReward(const RewardOptions& options) : options_(options) {}
  Result<Score> score(std::string_view reply, std::string_view answer) const override {
    const std::optional<std::string_view> found = options_.marker.empty() ? trim(reply) : after_marker(reply, options_.marker);
    if (!found || found->empty()) return Score{};
    return scored(same_text(*found, trim(answer), options_.ignore_case), *found);
  }

 private:
  RewardOptions options_;
};

class NumberReward final : public Reward {
 public:
  explicit NumberReward(const RewardOptions& options) : options_(options) {}
  Result<Score> score(std::string_view reply, std::string_view answer) const override {
    const auto wanted = parse_number(answer);
    if (!wanted) return fail(ErrorCode::kInvalidArgument, "the reference answer \"" + std::string(answer) + "\" is not a number");
    std::optional<std::string_view> found;
    if (options_.marker.empty()) {
      found = find_number(reply, true);
    } else if (const auto line = after_marker(reply, options_.marker)) {
      found = find_number(*line, false);
    }
    if (!found) return Score{};
    const auto number = parse_number(*found);
    if (!number) return scored(false, *found); // too many digits for an exact comparison with anything that fits
    const bool right = *number == *wanted ||
                       (options_.tolerance > 0 && std::abs(to_double(*number) - to_double(*wanted)) <= options_.tolerance);
    return scored(right, *found);
  }

 private:
  RewardOptions options_;
};

class BoxedReward final : public Reward {
 public:
  Result<Score> score(std::string_view reply, std::string_view answer) const override {
    const auto box = last_box(reply);
    if (!box || trim(*box).empty()) return Score{};
    // References are written both ways: bare, and as the boxed end of a solution.
    return scored(same_answer(*box, last_box(answer).value_or(answer)), *box);
  }
};

class RegexReward final : public Reward {
 public:
  RegexReward(RewardRegex regex, bool ignore_case) : regex_(std::move(regex)), ignore_case_(ignore_case) {}
  Result<Score> score(std::string_view reply, std::string_view answer) const override {
    TROUPE_TRY(const auto match, regex_.last_match(reply));
    if (!match) return Score{};
    if (!regex_.has_group()) return scored(true, match->whole);
    if (!match->group) return Score{};
    const std::string_view found = trim(*match->group);
    return scored(same_text(found, trim(answer), ignore_case_), found);
  }

 private:
  RewardRegex regex_;
  bool ignore_case_;
};

class SumReward final : public Reward {
 public:
  struct Part {
    double weight;
    std::unique_ptr<Reward> reward;
  };
  explicit SumReward(std::vector<Part> parts) : parts_(std::move(parts)) {}
  Result<Score> score(std::string_view reply, std::string_view answer) const override {
    Score sum;
    for (const Part& part : parts_) {
      TROUPE_TRY(const Score one, part.reward->score(reply, answer));
      sum.value += part.weight * one.value;
      if (!sum.answered && one.answered) sum.answered = true, sum.extracted = one.extracted;
    }
    return sum;
  }

 private:
  std::vector<Part> parts_;
};

template <class T>
Result<std::unique_ptr<Reward>> make(const RewardOptions& options) {
  return std::make_unique<T>(options);
}

Result<std::unique_ptr<Reward>> make_number(const RewardOptions& options) {
  if (!(options.tolerance >= 0))
    return fail(ErrorCode::kInvalidConfig, "reward.tolerance = " + std::to_string(options.tolerance) + " must not be negative");
  return std::make_unique<NumberReward>(options);
}

Result<std::unique_ptr<Reward>> make_boxed(const RewardOptions&) { return std::make_unique<BoxedReward>(); }

Result<std::unique_ptr<Reward>> make_regex(const RewardOptions& options) {
  if (options.pattern.empty()) return fail(ErrorCode::kInvalidConfig, "reward.type = regex needs reward.pattern");
  TROUPE_TRY(RewardRegex regex, RewardRegex::compile(options.pattern, options.ignore_case));
  return std::make_unique<RegexReward>(std::move(regex), options.ignore_case);
}

Result<std::unique_ptr<Reward>> make_sum(const RewardOptions& options) {
  if (options.parts.empty()) return fail(ErrorCode::kInvalidConfig, "reward.type = sum needs reward.parts");
  std::vector<SumReward::Part> parts;
  for (const RewardOptions& part : options.parts) {
    if (part.type == "sum") return fail(ErrorCode::kInvalidConfig, "a part of a sum reward must not be a sum: list its parts instead");
    if (!std::isfinite(part.weight)) return fail(ErrorCode::kInvalidConfig, "reward.parts: the weight of " + part.type + " is not finite");
    TROUPE_TRY(auto reward, make_reward(part));
    parts.push_back({part.weight, std::move(reward)});
  }
  return std::make_unique<SumReward>(std::move(parts));
}

} // namespace

std::span<const RewardRow> rewards() {
  static constexpr std::array<RewardRow, 5> kRows = {{
      {"exact", "1 when the reply (or what follows the marker) is the answer, letter for letter", &make<ExactReward>},
      {"number", "1 when the last number (or the first after the marker) equals the answer as a number", &make_number},
      {"regex", "1 when the pattern matches, and its first group (if any) is the answer", &make_regex},
      {"boxed", "1 when the last \\boxed{} says the same as the answer", &make_boxed},
      {"sum", "sum of weight * score over parts", &make_sum},
  }};
  return kRows;
}

Result<std::unique_ptr<Reward>> make_reward(const RewardOptions& options) {
  std::string known;
  for (const RewardRow& row : rewards()) {
    if (row.type == options.type) return row.create(options);
    known += (known.empty() ? "" : ", ") + std::string(row.type);
  }
  return fail(ErrorCode::kInvalidConfig, "unknown reward.type \"" + options.type + "\": one of " + known);
}

} // namespace troupe::rl
