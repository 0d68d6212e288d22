#include "observe/metrics.h"

#include <algorithm>
#include <cmath>

#include "observe/names.h"

namespace troupe::observe {

const double* MetricBatch::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(metrics, name, {}, [](const Metric& m) { return std::string_view(m.name); });
  return it != metrics.end() && it->name == name ? &it->value : nullptr;
}

void MetricBuffer::add(std::string_view name, double value, Fold fold, double weight) {
  auto it = slots_.find(name);
  if (it == slots_.end()) {
    if (slots_.size() >= names_max_) {
      ++dropped_;
      return;
    }
    it = slots_.emplace(name, Slot{fold, fold == Fold::kMean ? 0.0 : value, 0}).first;
    if (fold != Fold::kMean) return;
  }
  Slot& slot = it->second;
  switch (slot.fold) {
    case Fold::kLast:
      slot.value = value;
      break;
    case Fold::kSum:
      slot.value += value;
      break;
    case Fold::kMax:
      slot.value = std::isnan(value) ? value : std::max(slot.value, value);
      break;  // a NaN must not hide
    case Fold::kMin:
      slot.value = std::isnan(value) ? value : std::min(slot.value, value);
      break;
    case Fold::kMean:
      slot.value += value * weight;
      slot.weight += weight;
      break;
  }
}

MetricBatch MetricBuffer::take(std::uint64_t step, std::string_view stage, double time_s) {
  MetricBatch batch{step, std::string(stage), time_s, {}};
  batch.metrics.reserve(slots_.size() + 1);
  for (const auto& [name, slot] : slots_) {
    if (slot.fold == Fold::kMean && slot.weight == 0) continue;  // nothing was measured: absent, not 0
    batch.metrics.push_back({name, slot.fold == Fold::kMean ? slot.value / slot.weight : slot.value});
  }
  if (dropped_ > 0) {
    batch.metrics.push_back({std::string(names::kMetricsDropped), static_cast<double>(dropped_)});
    std::ranges::sort(batch.metrics, {}, &Metric::name);
  }
  slots_.clear();
  return batch;
}

}  // namespace troupe::observe
