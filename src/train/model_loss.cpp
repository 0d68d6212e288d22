#include "train/model_loss.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "model/balance.h"
#include "train/trainer.h"

namespace troupe::train {

std::vector<std::pair<std::int32_t, std::int32_t>> further_targets(const MicroBatch& batch) {
  std::map<std::int32_t, std::size_t> scored;  // row -> its place in rows; a prompt's last row has several and is left out
  std::vector<std::int32_t> repeated;
  for (std::size_t i = 0; i < batch.rows.size(); ++i)
    if (!scored.emplace(batch.rows[i], i).second) repeated.push_back(batch.rows[i]);
  for (const std::int32_t row : repeated) scored.erase(row);
  std::vector<std::pair<std::int32_t, std::int32_t>> found;
  for (const model::Segment& segment : batch.batch.segments) {
    for (std::int32_t row = segment.begin; row + 1 < segment.end; ++row) {
      const auto next = scored.find(row + 1);
      if (next != scored.end()) found.emplace_back(row, batch.targets[next->second]);
    }
  }
  return found;
}

void BatchCounts::add(const MicroBatch& batch) {
  targets += batch.targets.size();
  segments += batch.batch.segments.size();
  further += further_targets(batch).size();
}

void set_shares(std::span<MicroBatch> part, const BatchCounts& whole) {
  const auto share = [](std::size_t mine, std::size_t all) { return static_cast<double>(mine) / static_cast<double>(std::max<std::size_t>(1, all)); };
  for (MicroBatch& batch : part) {
    batch.share = share(batch.targets.size(), whole.targets);
    batch.sequence_share = share(batch.batch.segments.size(), whole.segments);
    batch.further_weight = share(1, whole.further);
  }
}

ModelLoss::ModelLoss(const ModelLossOptions& options, const model::ModelSpec& spec) : options_(options) {
  const auto add = [this](const model::LayerSpec& layer) {
    counts_.emplace_back(layer.ffn.kind == model::FfnKind::kExperts ? static_cast<std::size_t>(layer.ffn.experts.count) : 0);
  };
  for (const model::LayerSpec& layer : spec.layers) add(layer);
  for (const model::LayerSpec& layer : spec.mtp) add(layer);
  if (spec.mtp.empty()) options_.further = 0;
}

at::Tensor ModelLoss::balance(const model::Trace& trace, const MicroBatch& batch) {
  at::Tensor sum;
  const auto add = [&](const at::Tensor& loss, double coefficient, double share, float& total) {
    if (!loss.defined()) return;
    total += static_cast<float>(share) * loss.item<float>();
    const at::Tensor scaled = loss * (coefficient * share);
    sum = sum.defined() ? sum + scaled : scaled;
  };
  if (options_.load_balance > 0) add(model::load_balance_loss(trace), options_.load_balance, batch.share, sums_[0]);
  if (options_.sequence_balance > 0 && !trace.routed.empty()) {
    at::Tensor all = at::zeros({});
    for (const model::Trace::Routed& routed : trace.routed) all = all + model::sequence_balance_loss(routed, batch.batch);
    add(all / static_cast<double>(trace.routed.size()), options_.sequence_balance, batch.sequence_share, sums_[1]);
  }
  return sum;
}

at::Tensor ModelLoss::further(model::Model& model, const MicroBatch& batch, model::Trace& trace) {
  const auto pairs = further_targets(batch);
  if (options_.further <= 0 || pairs.empty()) return {};
  const at::Tensor hidden = model.predict_further(batch.batch, 0, trace);
  std::vector<std::int64_t> rows;
  std::vector<std::int32_t> targets;
  for (const auto& [row, target] : pairs) {
    rows.push_back(row);
    targets.push_back(target);
  }
  const auto scores = model.score(hidden.index_select(0, at::tensor(rows)), targets);
  const at::Tensor loss = scores.logprob.sum() * -batch.further_weight;
  sums_[2] += loss.item<float>();
  return loss * options_.further;
}

at::Tensor ModelLoss::of(model::Model& model, const MicroBatch& batch, model::Trace& trace) {
  at::Tensor sum = balance(trace, batch);
  if (const at::Tensor loss = further(model, batch, trace); loss.defined()) sum = sum.defined() ? sum + loss : loss;
  for (const model::Trace::Routed& routed : trace.routed) {
    std::vector<float>& counts = counts_.at(static_cast<std::size_t>(routed.place));
    for (const std::int32_t expert : routed.choices) counts[static_cast<std::size_t>(expert)] += 1;
  }
  return sum;
}

std::vector<std::span<float>> ModelLoss::totals() {
  std::vector<std::span<float>> all{sums_};
  for (std::vector<float>& counts : counts_)
    if (!counts.empty()) all.emplace_back(counts);
  return all;
}

void ModelLoss::move_corrections(model::Model& model) const {
  if (options_.correction_speed <= 0) return;
  for (std::size_t place = 0; place < counts_.size(); ++place) {
    const at::Tensor correction = model.router_correction(static_cast<int>(place));
    const bool routed = std::any_of(counts_[place].begin(), counts_[place].end(), [](float n) { return n > 0; });
    if (!correction.defined() || !routed) continue;
    model::update_correction(correction, std::vector<double>(counts_[place].begin(), counts_[place].end()), options_.correction_speed);
  }
}

ModelLossReport ModelLoss::report() const {
  ModelLossReport report{sums_[0], sums_[1], sums_[2], 0};
  for (const std::vector<float>& counts : counts_) {
    const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
    if (all == 0) continue;
    report.busiest = std::max(report.busiest, *std::max_element(counts.begin(), counts.end()) * static_cast<double>(counts.size()) / all);
  }
  return report;
}

} // namespace troupe::train
