#include <algorithm>
#include <utility>

#include "base/check.h"
#include "data/packing.h"
#include "rl/batch.h"

namespace troupe::rl {
namespace {

std::int32_t to_index(std::size_t n) { return static_cast<std::int32_t>(n); }

std::vector<PolicyVersion> distinct_versions(const Sample& sample) {
  std::vector<PolicyVersion> versions;
  for (std::size_t i = 0; i < sample.ids.size(); ++i)
    if (sample.sampled.empty() || sample.sampled[i] != 0) versions.push_back(sample.versions[i]);
  std::sort(versions.begin(), versions.end());
  versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
  return versions;
}

/// Tokens of a sample that follow one another: the first ones follow the prompt, later ones nothing.
struct Context {
  std::size_t begin = 0;
  std::size_t last = 0;  ///< The last sampled token; rows are needed for those before it.
  bool trained = false;  ///< Any token was sampled.
};

std::vector<Context> contexts_of(const Sample& sample) {
  std::vector<Context> contexts;
  for (std::size_t k = 0; k <= sample.starts.size(); ++k) {
    const std::size_t begin = k == 0 ? 0 : sample.starts[k - 1];
    const std::size_t end = k == sample.starts.size() ? sample.ids.size() : sample.starts[k];
    Context context{begin, begin, false};
    for (std::size_t j = begin; j < end; ++j)
      if (sample.sampled.empty() || sample.sampled[j] != 0) context.last = j, context.trained = true;
    if (context.trained) contexts.push_back(context);
  }
  return contexts;
}

/// Rows a sample needs besides its prompt.
std::size_t own_rows(const Sample& sample) {
  std::size_t rows = 0;
  for (const Context& context : contexts_of(sample)) rows += context.last - context.begin;
  return rows;
}

/// Hands out sequences by the rows before them.
class PartOf {
 public:
  PartOf(std::size_t rows, Part part) : rows_(std::max<std::size_t>(1, rows)), part_(part) {
    TROUPE_CHECK(part.index < part.count, "a part is one of `count`");
  }
  /// Whether the next sequence, of `rows` rows, is in the part.
  bool has_next(std::size_t rows) {
    const std::size_t middle_twice = 2 * before_ + rows;
    before_ += rows;
    return std::min<std::size_t>(part_.count - 1, middle_twice * part_.count / (2 * rows_)) == part_.index;
  }

 private:
  std::size_t rows_;
  Part part_;
  std::size_t before_ = 0;
};

/// Fills micro-batches in order, sharing a group's prompt inside each of them.
class Cutter {
 public:
  explicit Cutter(std::int64_t rows_max) : rows_max_(static_cast<std::size_t>(std::max<std::int64_t>(1, rows_max))) {}

  void add(const PreparedGroup& group, const PreparedSample& prepared) {
    const std::size_t own = own_rows(prepared.sample);
    const bool shared = prompt_of_ == &group;
    const std::size_t needed = own + (shared ? 0 : group.prompt.size());
    if (!micro_.ids.empty() && micro_.ids.size() + needed > rows_max_) close();
    if (prompt_of_ != &group) add_prompt(group);
    add_sample(prepared);
  }

  std::vector<MicroBatch> finish() {
    if (!micro_.ids.empty()) close();
    return std::move(done_);
  }

 private:
  void close() {
    done_.push_back(std::move(micro_));
    micro_ = {};
    prompt_of_ = nullptr;
  }

  void add_prompt(const PreparedGroup& group) {
    prompt_of_ = &group;
    prompt_ = {to_index(micro_.ids.size()), to_index(micro_.ids.size() + group.prompt.size()), 0, 0};
    micro_.segments.push_back(prompt_);
    for (std::size_t i = 0; i < group.prompt.size(); ++i) {
      micro_.ids.push_back(group.prompt[i]);
      micro_.positions.push_back(to_index(i));
    }
  }

  void add_sample(const PreparedSample& prepared) {
    const Sample& sample = prepared.sample;
    const std::int32_t first = to_index(micro_.targets.size());
    for (const Context& context : contexts_of(sample)) add_context(prepared, context);
    micro_.sequences.push_back({first, to_index(micro_.targets.size())});
    micro_.samples.push_back(sample.id);
    micro_.versions.push_back(distinct_versions(sample));
  }

  void add_context(const PreparedSample& prepared, const Context& context) {
    const Sample& sample = prepared.sample;
    const bool follows = context.begin == 0;
    const std::int32_t begin = to_index(micro_.ids.size());
    const std::int32_t before = follows ? prompt_.end - prompt_.begin : 0;
    for (std::size_t j = context.begin; j < context.last; ++j) {
      micro_.ids.push_back(sample.ids[j]);
      micro_.positions.push_back(before + to_index(j - context.begin));
    }
    if (context.last > context.begin)
      micro_.segments.push_back({begin, to_index(micro_.ids.size()), follows ? prompt_.begin : 0, follows ? prompt_.end : 0});
    for (std::size_t j = context.begin; j <= context.last; ++j) {
      if (!sample.sampled.empty() && sample.sampled[j] == 0) continue;
      micro_.rows.push_back(j == context.begin ? prompt_.end - 1 : begin + to_index(j - context.begin) - 1);
      micro_.targets.push_back(sample.ids[j]);
      micro_.behaviour_logprob.push_back(sample.logprobs[j]);
      micro_.advantage.push_back(static_cast<float>(prepared.advantage));
      micro_.mask.push_back(1);
    }
  }

  std::size_t rows_max_;
  MicroBatch micro_;
  const PreparedGroup* prompt_of_ = nullptr; ///< Whose prompt the open micro-batch holds last.
  Segment prompt_;
  std::vector<MicroBatch> done_;
};

void add_document(MicroBatch& micro, const data::PackedSequences& packed, std::int32_t from, std::int32_t to) {
  const std::int32_t begin = to_index(micro.ids.size());
  const std::int32_t first = to_index(micro.targets.size());
  for (std::int32_t row = from; row < to; ++row) {
    const auto at = static_cast<std::size_t>(row);
    micro.ids.push_back(packed.ids[at]);
    micro.positions.push_back(packed.positions[at]);
    if (packed.loss_mask[at] == 0) continue;
    micro.rows.push_back(begin + row - from);
    micro.targets.push_back(packed.targets[at]);
    micro.behaviour_logprob.push_back(0);
    micro.advantage.push_back(0);
    micro.mask.push_back(1);
  }
  micro.segments.push_back({begin, to_index(micro.ids.size()), 0, 0});
  micro.sequences.push_back({first, to_index(micro.targets.size())});
}

} // namespace

std::vector<MicroBatch> cut_micro_batches(const PreparedBatch& batch, std::int64_t rows_max, Part part) {
  const auto for_each = [&](const auto& visit) { // with the rows it brings: its own, and its group's prompt when it is the first of it
    for (const PreparedGroup& group : batch.groups) {
      std::size_t prompt = group.prompt.size();
      for (const PreparedSample& sample : group.samples)
        if (sample.trained_tokens > 0) visit(group, sample, own_rows(sample.sample) + std::exchange(prompt, 0));
    }
  };
  std::size_t rows = 0;
  for_each([&](const PreparedGroup&, const PreparedSample&, std::size_t n) { rows += n; });
  PartOf mine(rows, part);
  Cutter cutter(rows_max);
  for_each([&](const PreparedGroup& group, const PreparedSample& sample, std::size_t n) {
    if (mine.has_next(n)) cutter.add(group, sample);
  });
  return cutter.finish();
}

void count_packed(Denominator& denominator, const data::PackedSequences& packed) {
  for (const auto& [begin, end] : packed.documents)
    denominator.add_sequence(std::count_if(packed.loss_mask.begin() + begin, packed.loss_mask.begin() + end,
                                           [](std::uint8_t m) { return m != 0; }));
}

std::vector<MicroBatch> cut_packed(const data::PackedSequences& packed, std::int64_t rows_max, Part part) {
  std::vector<MicroBatch> done;
  MicroBatch micro;
  PartOf mine(packed.ids.size(), part);
  for (const auto& [begin, end] : packed.documents) {
    if (!mine.has_next(static_cast<std::size_t>(end - begin))) continue;
    if (!micro.ids.empty() && static_cast<std::int64_t>(micro.ids.size()) + (end - begin) > rows_max) {
      done.push_back(std::move(micro));
      micro = {};
    }
    add_document(micro, packed, begin, end);
  }
  if (!micro.ids.empty()) done.push_back(std::move(micro));
  return done;
}

TokenBatch token_batch(const MicroBatch& micro, std::span<const float> logprob) {
  TokenBatch batch;
  batch.logprob = logprob;
  batch.behaviour_logprob = micro.behaviour_logprob;
  batch.advantage = micro.advantage;
  batch.mask = micro.mask;
  batch.sequences = micro.sequences;
  return batch;
}

std::vector<std::uint8_t> equal_weights_mask(const MicroBatch& micro, PolicyVersion version) {
  std::vector<std::uint8_t> mask(micro.targets.size(), 0);
  TROUPE_CHECK(micro.versions.size() == micro.sequences.size(), "a policy batch has the versions of every sequence");
  for (std::size_t s = 0; s < micro.sequences.size(); ++s) {
    if (micro.versions[s].size() != 1 || micro.versions[s].front() != version) continue;
    std::fill(mask.begin() + micro.sequences[s].begin, mask.begin() + micro.sequences[s].end, std::uint8_t{1});
  }
  return mask;
}

} // namespace troupe::rl
