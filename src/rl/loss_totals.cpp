// What token losses are divided by, and the sums that become metrics.
#include <algorithm>

#include "rl/loss.h"

namespace troupe::rl {

Denominator make_denominator(Aggregation aggregation, double constant_tokens) {
  Denominator d;
  d.aggregation = aggregation;
  d.constant_tokens = constant_tokens;
  return d;
}

void Denominator::add_sequence(std::int64_t trained_tokens_of_it) {
  tokens += trained_tokens_of_it;
  sequences += trained_tokens_of_it > 0 ? 1 : 0;
  ++sequences_all;
}

void Denominator::add(const Denominator& other) {
  tokens += other.tokens;
  sequences += other.sequences;
  sequences_all += other.sequences_all;
}

double Denominator::weight(std::int64_t trained_tokens_of_it) const {
  if (trained_tokens_of_it == 0 || tokens == 0) return 0;
  switch (aggregation) {
    case Aggregation::kTokenMean: return 1.0 / static_cast<double>(tokens);
    case Aggregation::kSeqMeanTokenMean: return 1.0 / (static_cast<double>(sequences) * static_cast<double>(trained_tokens_of_it));
    case Aggregation::kSeqMeanTokenSum: return 1.0 / static_cast<double>(sequences);
    case Aggregation::kConstant: return 1.0 / (static_cast<double>(sequences_all) * constant_tokens);
  }
  return 0;
}

void count(Denominator& denominator, std::span<const std::uint8_t> mask, std::span<const SequenceRange> sequences) {
  for (const SequenceRange& range : sequences)
    denominator.add_sequence(std::count_if(mask.begin() + range.begin, mask.begin() + range.end, [](std::uint8_t m) { return m != 0; }));
}

void LossTotals::add(const LossTotals& other) {
  loss += other.loss;
  policy_loss += other.policy_loss;
  kl_loss += other.kl_loss;
  tokens += other.tokens;
  clipped_high += other.clipped_high;
  clipped_low += other.clipped_low;
  clipped_dual += other.clipped_dual;
  neg_log_ratio += other.neg_log_ratio;
  ratio += other.ratio;
  importance += other.importance;
  importance_truncated += other.importance_truncated;
  entropy += other.entropy;
}

LossMetrics metrics(const LossTotals& t) {
  LossMetrics m;
  m.loss = t.loss;
  m.policy_loss = t.policy_loss;
  m.kl_loss = t.kl_loss;
  if (t.tokens == 0) return m;
  const auto n = static_cast<double>(t.tokens);
  m.clip_fraction_high = static_cast<double>(t.clipped_high) / n;
  m.clip_fraction_low = static_cast<double>(t.clipped_low) / n;
  m.clip_fraction_dual = static_cast<double>(t.clipped_dual) / n;
  m.clip_fraction = static_cast<double>(t.clipped_high + t.clipped_low + t.clipped_dual) / n;
  m.ppo_kl = t.neg_log_ratio / n;
  m.ratio_mean = t.ratio / n;
  m.importance_mean = t.importance / n;
  m.importance_truncated_fraction = static_cast<double>(t.importance_truncated) / n;
  m.entropy = t.entropy / n;
  return m;
}

} // namespace troupe::rl
