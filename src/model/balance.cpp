#include "model/balance.h"

#include <ATen/ATen.h>

#include <numeric>

#include "base/check.h"
#include "tensor/autograd.h"

namespace troupe::model {

namespace {

at::Tensor counts_tensor(std::span<const std::int32_t> choices, std::int64_t experts) {
  at::Tensor counts = at::zeros({experts});
  for (const std::int32_t expert : choices) counts.data_ptr<float>()[expert] += 1;
  return counts;
}

}  // namespace

at::Tensor load_balance_loss(const Trace& trace) {
  if (trace.routed.empty()) return {};
  std::vector<at::Tensor> logits;
  const std::int64_t experts = trace.routed.front().logits.size(1);
  at::Tensor counts = at::zeros({experts});
  for (const Trace::Routed& one : trace.routed) {
    TROUPE_CHECK(one.logits.size(1) == experts, "all mixtures have the same number of experts");
    logits.push_back(one.logits);
    counts.add_(counts_tensor(one.choices, experts));
  }
  const at::Tensor all = at::cat(logits, 0);
  const at::Tensor share = counts / static_cast<double>(all.size(0));
  return (share * all.softmax(-1).mean(0)).sum() * static_cast<double>(experts);
}

at::Tensor sequence_balance_loss(const Trace::Routed& routed, const Batch& batch) {
  const at::Tensor scores = routed.logits.sigmoid();
  const std::int64_t experts = scores.size(1);
  const std::int64_t chosen = routed.weights.size(1);
  const at::Tensor share = scores / scores.sum(-1, true);
  at::Tensor sum = at::zeros({});
  for (const Segment& s : batch.segments) {
    const std::int64_t rows = s.end - s.begin;
    const auto choices = std::span(routed.choices)
                             .subspan(static_cast<std::size_t>(s.begin * chosen), static_cast<std::size_t>(rows * chosen));
    const at::Tensor used = counts_tensor(choices, experts) *
                            (static_cast<double>(experts) / static_cast<double>(chosen * rows));
    sum = sum + (used * share.narrow(0, s.begin, rows).mean(0)).sum();
  }
  return sum / static_cast<double>(batch.segments.size());
}

std::vector<double> expert_counts(const Trace::Routed& routed) {
  std::vector<double> counts(static_cast<std::size_t>(routed.logits.size(1)));
  for (const std::int32_t expert : routed.choices) counts[static_cast<std::size_t>(expert)] += 1;
  return counts;
}

void update_correction(const at::Tensor& correction, std::span<const double> counts, double speed) {
  const std::span<float> values = tensor::floats(correction);
  TROUPE_CHECK(values.size() == counts.size() && !counts.empty(), "a count per expert");
  const double mean = std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double step = counts[i] < mean ? speed : counts[i] > mean ? -speed : 0;
    values[i] = static_cast<float>(static_cast<double>(values[i]) + step);
  }
}

}  // namespace troupe::model
