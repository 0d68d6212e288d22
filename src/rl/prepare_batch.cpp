#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "rl/advantage.h"
#include "rl/batch.h"

namespace troupe::rl {
namespace {

std::int64_t sampled_tokens(const Sample& sample) {
  if (sample.sampled.empty()) return static_cast<std::int64_t>(sample.ids.size());
  return std::count_if(sample.sampled.begin(), sample.sampled.end(), [](std::uint8_t s) { return s != 0; });
}

std::int64_t trained_tokens(const Sample& sample, const AlgorithmOptions& options) {
  return options.overlong.filter && sample.truncated ? 0 : sampled_tokens(sample);
}

double shaped_reward(const Sample& sample, const AlgorithmOptions& options, std::int64_t length_max) {
  const OverlongOptions& o = options.overlong;
  return sample.reward + o.penalty * overlong_penalty(sampled_tokens(sample), length_max, o.penalty_buffer);
}

Status check_sample(const Sample& sample, std::uint64_t prompt_id) {
  const std::string name = "sample " + to_string(sample.id);
  const auto bad = [&](const std::string& why) { return fail(ErrorCode::kInvalidArgument, name + " " + why); };
  const std::size_t n = sample.ids.size();
  if (sample.id.prompt != prompt_id) return bad("came with the group of prompt " + std::to_string(prompt_id));
  if (n == 0) return bad("has no tokens");
  if (sample.logprobs.size() != n || sample.versions.size() != n || (!sample.sampled.empty() && sample.sampled.size() != n))
    return bad("has " + std::to_string(n) + " ids, " + std::to_string(sample.logprobs.size()) + " log-probs, " +
               std::to_string(sample.versions.size()) + " versions, " + std::to_string(sample.sampled.size()) + " mask entries");
  for (std::size_t k = 0; k < sample.starts.size(); ++k) {
    const std::size_t at = sample.starts[k];
    if (at == 0 || at >= n || (k > 0 && at <= sample.starts[k - 1]) || sample.sampled.empty() || sample.sampled[at] != 0)
      return bad("begins a context at token " + std::to_string(at) + ", where none can begin");
  }
  if (!std::isfinite(sample.reward)) return fail(ErrorCode::kCorrupt, name + " has the reward " + std::to_string(sample.reward));
  for (std::size_t i = 0; i < n; ++i)
    if ((sample.sampled.empty() || sample.sampled[i] != 0) && !std::isfinite(sample.logprobs[i]))
      return fail(ErrorCode::kCorrupt, name + ": the log-prob of token " + std::to_string(i) + " is " + std::to_string(sample.logprobs[i]));
  return {};
}

Status check_and_sort(std::vector<Group>& groups) {
  std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.prompt_id < b.prompt_id; });
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Group& group = groups[g];
    if (g > 0 && groups[g - 1].prompt_id == group.prompt_id)
      return fail(ErrorCode::kInvalidArgument, "the group of prompt " + std::to_string(group.prompt_id) + " is there twice");
    if (group.prompt.empty()) return fail(ErrorCode::kInvalidArgument, "prompt " + std::to_string(group.prompt_id) + " has no tokens");
    auto& samples = group.samples;
    std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.id < b.id; });
    for (std::size_t i = 0; i < samples.size(); ++i) {
      TROUPE_TRY_STATUS(check_sample(samples[i], group.prompt_id));
      if (i > 0 && samples[i - 1].id == samples[i].id)
        return fail(ErrorCode::kInvalidArgument, "sample " + to_string(samples[i].id) + " is there twice");
    }
  }
  return {};
}

/// Running mean, deviation and range of one figure.
struct Figures {
  double sum = 0, squares = 0;
  double lowest = std::numeric_limits<double>::infinity(), highest = -std::numeric_limits<double>::infinity();
  std::int64_t n = 0;
  void add(double x) {
    sum += x, squares += x * x, ++n;
    lowest = std::min(lowest, x), highest = std::max(highest, x);
  }
  [[nodiscard]] double mean() const { return n > 0 ? sum / static_cast<double>(n) : 0; }
  [[nodiscard]] double deviation() const { return n > 0 ? std::sqrt(std::max(0.0, squares / static_cast<double>(n) - mean() * mean())) : 0; }
  [[nodiscard]] double minimum() const { return n > 0 ? lowest : 0; }
  [[nodiscard]] double maximum() const { return n > 0 ? highest : 0; }
};

BatchMetrics measure(const std::vector<Group>& groups) {
  BatchMetrics m;
  Figures reward, length;
  for (const Group& group : groups) {
    ++m.groups;
    bool none = !group.samples.empty(), all = none;
    for (const Sample& sample : group.samples) {
      ++m.samples;
      m.truncated += sample.truncated ? 1 : 0;
      reward.add(sample.reward);
      length.add(static_cast<double>(sampled_tokens(sample)));
      none = none && sample.reward <= 0;
      all = all && sample.reward >= 1;
    }
    m.solve_none += none ? 1 : 0;
    m.solve_all += all ? 1 : 0;
  }
  m.reward_mean = reward.mean(), m.reward_std = reward.deviation(), m.reward_min = reward.minimum(), m.reward_max = reward.maximum();
  m.response_length_mean = length.mean(), m.response_length_min = length.minimum(), m.response_length_max = length.maximum();
  m.clip_ratio = m.samples > 0 ? static_cast<double>(m.truncated) / static_cast<double>(m.samples) : 0;
  return m;
}

PreparedGroup prepare_group(Group group, const AlgorithmOptions& options, std::int64_t length_max) {
  std::vector<double> rewards;
  for (const Sample& sample : group.samples) rewards.push_back(shaped_reward(sample, options, length_max));
  // Over the whole group, before any mask: leaving samples out first would shift the baseline of the others.
  const std::vector<double> advantages = group_advantages(rewards, options.advantage);
  PreparedGroup prepared{group.prompt_id, std::move(group.prompt), {}};
  for (std::size_t i = 0; i < group.samples.size(); ++i) {
    const std::int64_t trained = trained_tokens(group.samples[i], options);
    prepared.samples.push_back({std::move(group.samples[i]), rewards[i], advantages[i], trained});
  }
  return prepared;
}

} // namespace

bool group_is_zero_signal(const Group& group, const AlgorithmOptions& options, std::int64_t length_max) {
  std::vector<double> rewards;
  std::vector<std::uint8_t> trained;
  for (const Sample& sample : group.samples) {
    rewards.push_back(shaped_reward(sample, options, length_max));
    trained.push_back(trained_tokens(sample, options) > 0 ? 1 : 0);
  }
  return zero_signal(rewards, trained);
}

Result<PreparedBatch> prepare_batch(std::vector<Group> groups, const AlgorithmOptions& options, std::int64_t length_max) {
  TROUPE_TRY_STATUS(check_and_sort(groups));
  PreparedBatch batch;
  batch.metrics = measure(groups);
  batch.denominator = make_denominator(options.loss.aggregation, options.loss.constant_tokens);
  Figures advantage;
  for (Group& group : groups) {
    const bool silent = group_is_zero_signal(group, options, length_max);
    batch.metrics.groups_zero_signal += silent ? 1 : 0;
    if (silent && options.advantage.drop_zero_signal) {
      batch.dropped.push_back(group.prompt_id);
      continue;
    }
    batch.groups.push_back(prepare_group(std::move(group), options, length_max));
    for (const PreparedSample& sample : batch.groups.back().samples) {
      batch.denominator.add_sequence(sample.trained_tokens);
      if (sample.trained_tokens > 0) advantage.add(sample.advantage);
    }
  }
  batch.metrics.advantage_mean = advantage.mean();
  batch.metrics.advantage_min = advantage.minimum();
  batch.metrics.advantage_max = advantage.maximum();
  return batch;
}

} // namespace troupe::rl
