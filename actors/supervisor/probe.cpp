#include "actors/supervisor/probe.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include "base/hash.h"

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

// The same sequences at the same version have the same id, whichever head asks.
std::uint64_t id_of(PolicyVersion version, const std::deque<ProbeSequence>& sequences) {
  Hasher64 hasher;
  hasher.update(std::as_bytes(std::span(&version.epoch, 1))); // field by field: the struct has padding
  hasher.update(std::as_bytes(std::span(&version.step, 1)));
  for (const ProbeSequence& sequence : sequences) {
    hasher.update(std::as_bytes(std::span(&sequence.prompt_length, 1)));
    hasher.update(std::as_bytes(std::span(sequence.ids)));
  }
  return hasher.digest();
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
  if (const auto known = rounds_.find(version); known != rounds_.end()) return known->second.order;
  // A version that was let go is not asked for anew: answers about other sequences may still be on their way.
  const bool let_go = rounds_.size() == kRounds && version < rounds_.begin()->first;
  if (recent_.empty() || let_go) return std::nullopt;
  ScoreProbe order{id_of(version, recent_), version, stage, {recent_.begin(), recent_.end()}};
  if (rounds_.size() == kRounds) rounds_.erase(rounds_.begin());
  return rounds_.emplace(version, Round{std::move(order), {}}).first->second.order;
}

std::vector<ProbeOutcome> Probe::scored(const ProbeScored& scores) {
  std::vector<ProbeOutcome> outcomes;
  const auto round = rounds_.find(scores.version);
  if (round == rounds_.end() || round->second.order.id != scores.probe) return outcomes; // another head asked, or too late
  const bool is_rank = scores.decode.empty();
  auto& known = round->second.scores;
  known[is_rank ? "" : scores.worker] = scores;
  const auto rank = known.find("");
  if (rank == known.end()) return outcomes;
  const auto judge = [&](const ProbeScored& worker) {
    ProbeOutcome outcome{0, 0, worker.worker, scores.version};
    compare(rank->second.prefill, worker.prefill, outcome);
    compare(rank->second.prefill, worker.decode, outcome);
    outcomes.push_back(outcome);
  };
  if (!is_rank) judge(scores);
  else
    for (const auto& [name, other] : known)
      if (!name.empty()) judge(other);
  return outcomes;
}

} // namespace troupe::actors
