#include "actors/supervisor/probe.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace troupe::actors {
namespace {

void compare(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b, ProbeOutcome& outcome) {
  if (a.size() != b.size()) return;
  for (std::size_t s = 0; s < a.size(); ++s)
    for (std::size_t t = 0; t < std::min(a[s].size(), b[s].size()); ++t) {
      ++outcome.tokens;
      if (std::bit_cast<std::uint32_t>(a[s][t]) == std::bit_cast<std::uint32_t>(b[s][t])) continue;
      const double diff = std::abs(static_cast<double>(a[s][t]) - static_cast<double>(b[s][t]));
      outcome.diff_max = std::max(outcome.diff_max, std::isfinite(diff) ? std::max(diff, std::numeric_limits<double>::min()) : 1e300);
    }
}

} // namespace

void Probe::delivered(const std::vector<std::int32_t>& prompt, const std::vector<std::int32_t>& completion) {
  if (sequences_max_ == 0 || prompt.empty() || completion.empty()) return;
  ProbeSequence sequence{prompt, static_cast<std::int32_t>(prompt.size())};
  sequence.ids.insert(sequence.ids.end(), completion.begin(), completion.end());
  recent_.push_back(std::move(sequence));
  if (recent_.size() > sequences_max_) recent_.pop_front();
}

std::optional<ScoreProbe> Probe::order(PolicyVersion version, std::int32_t stage) {
  if (current_ && current_->version == version) return current_;
  if (recent_.empty()) return std::nullopt;
  current_ = ScoreProbe{version, stage, {recent_.begin(), recent_.end()}};
  scores_.clear();
  return current_;
}

std::vector<ProbeOutcome> Probe::scored(const ProbeScored& scores) {
  std::vector<ProbeOutcome> outcomes;
  if (!current_ || scores.version != current_->version) return outcomes;
  const bool is_rank = scores.decode.empty();
  scores_[is_rank ? "" : scores.worker] = scores;
  const auto rank = scores_.find("");
  if (rank == scores_.end()) return outcomes;
  const auto judge = [&](const ProbeScored& worker) {
    ProbeOutcome outcome{0, 0, worker.worker, scores.version};
    compare(rank->second.prefill, worker.prefill, outcome);
    compare(rank->second.prefill, worker.decode, outcome);
    outcomes.push_back(outcome);
  };
  if (!is_rank) judge(scores);
  else
    for (const auto& [name, other] : scores_)
      if (!name.empty()) judge(other);
  return outcomes;
}

} // namespace troupe::actors
