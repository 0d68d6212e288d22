#include "kernels/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"

namespace troupe::kernels {
namespace {

constexpr std::int64_t kTasksPerThread = 4;  // enough that the last, longest ones even out

AttentionShape resolved(AttentionShape shape) {
  TROUPE_CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0,
               "attention: kv_heads must divide heads");
  TROUPE_CHECK(shape.head_dim > 0 && shape.head_dim <= 256 && shape.head_dim % kLanes == 0,
               "attention: head_dim must be a multiple of 16, at most 256");
  if (shape.scale == 0) shape.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  return shape;
}

std::int64_t panel_floats(const AttentionShape& shape, const KeySpan& span) {
  return span.layout == KvLayout::kPages
             ? 0
             : (span.count + kLanes - 1) / kLanes * kLanes * shape.head_dim * shape.kv_heads;
}

bool same_rows(const KeySpan& a, const KeySpan& b) {
  return a.k == b.k && a.v == b.v && a.count == b.count && a.stride == b.stride && a.layout == b.layout;
}

/// Keys [0, count) of one head in rows, as panels [count/16][head_dim][16]; keys behind the last are 0.
void pack_keys(const KernelTable& isa, const float* k, std::int64_t stride, std::int64_t count, std::int64_t head_dim,
               float* panels) {
  for (std::int64_t begin = 0; begin < count; begin += kLanes, panels += kLanes * head_dim) {
    const float* rows[kLanes];
    const std::int64_t n = std::min(kLanes, count - begin);
    for (std::int64_t j = 0; j < n; ++j) rows[j] = k + (begin + j) * stride;
    isa.products[0].pack_panel(rows, n, head_dim, panels);
  }
}

/// A span of rows to be packed, all heads.
struct PackJob {
  const KeySpan* span;
  float* panels;
};

/// The batch in the form the inner function takes: views of all spans, panels for those that are rows. Keeps its memory
/// from batch to batch: decoding comes here once a layer.
class Batch {
 public:
  void set(const AttentionShape& shape, const AttentionSegment* segments, std::int64_t count) {
    shape_ = shape;
    segments_ = segments;
    count_ = count;
    views_.clear();
    first_view_.clear();
    keys_.clear();
    jobs_.clear();
    most_keys_ = 0;
    operations_ = 0;
    std::int64_t floats = 0;
    std::size_t spans = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      spans += static_cast<std::size_t>(segments[i].span_count);
      for (std::int64_t s = 0; s < segments[i].span_count; ++s) floats += panel_floats(shape, segments[i].spans[s]);
    }
    views_.reserve(spans);
    float* panels = floats == 0 ? nullptr : scratch(Scratch::kShared, floats);
    for (std::int64_t i = 0; i < count; ++i) panels = add(i, panels);
  }

  [[nodiscard]] double operations() const { return operations_; }
  [[nodiscard]] std::int64_t most_keys() const { return most_keys_; }

  void pack(int threads) const {
    const auto heads = static_cast<std::int64_t>(jobs_.size()) * shape_.kv_heads;
    const KernelTable& isa = table();
    run_ranges(heads, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const PackJob& job = jobs_[static_cast<std::size_t>(i / shape_.kv_heads)];
        const std::int64_t head = i % shape_.kv_heads;
        const std::int64_t panel_rows = (job.span->count + kLanes - 1) / kLanes * kLanes;
        pack_keys(isa, job.span->k + head * shape_.head_dim, job.span->stride, job.span->count, shape_.head_dim,
                  job.panels + head * panel_rows * shape_.head_dim);
      }
    });
  }

  /// Valid until the next set().
  std::vector<AttentionTask>& tasks(int threads) {
    tasks_.clear();
    const std::int64_t whole = count_ * shape_.kv_heads;
    const std::int64_t pieces = threads == 1 ? 1 : (kTasksPerThread * threads + whole - 1) / whole;
    for (std::int64_t i = count_ - 1; i >= 0; --i) {
      const AttentionSegment& s = segments_[i];
      if (s.rows == 0) continue;
      const std::int64_t step = std::max<std::int64_t>(kAttentionTileRows, (s.rows + pieces - 1) / pieces);
      for (std::int64_t begin = 0; begin < s.rows; begin += step) {
        for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
          tasks_.push_back({shape_, &s, s.q_stride == 0 ? shape_.heads * shape_.head_dim : s.q_stride,
                           s.out_stride == 0 ? shape_.heads * shape_.head_dim : s.out_stride,
                           views_.data() + first_view_[static_cast<std::size_t>(i)], s.span_count,
                           keys_[static_cast<std::size_t>(i)], head, begin, std::min(begin + step, s.rows), nullptr});
        }
      }
    }
    return tasks_;
  }

 private:
  float* add(std::int64_t index, float* panels) {
    const AttentionSegment& s = segments_[index];
    first_view_.push_back(views_.size());
    std::int64_t keys = 0;
    for (std::int64_t i = 0; i < s.span_count; ++i) {
      keys += s.spans[i].count;
      const bool repeated = index > 0 && i < segments_[index - 1].span_count && s.spans[i].layout == KvLayout::kRows &&
                            same_rows(s.spans[i], segments_[index - 1].spans[i]);
      if (repeated) {
        views_.push_back(views_[first_view_[static_cast<std::size_t>(index) - 1] + static_cast<std::size_t>(i)]);
      } else {
        views_.push_back(view(s.spans[i], panels));
        if (s.spans[i].layout == KvLayout::kRows) jobs_.push_back({&s.spans[i], panels});
        panels += panel_floats(shape_, s.spans[i]);
      }
    }
    TROUPE_CHECK(keys >= s.rows, "attention: a segment has fewer keys than queries");
    keys_.push_back(keys);
    most_keys_ = std::max(most_keys_, keys);
    operations_ += 4.0 * static_cast<double>(s.rows * shape_.heads * shape_.head_dim * keys);
    return panels;
  }

  [[nodiscard]] SpanView view(const KeySpan& span, const float* panels) const {
    const std::int64_t hd = shape_.head_dim;
    if (span.layout == KvLayout::kPages) {
      TROUPE_CHECK(span.stride % kLanes == 0 && span.count <= span.stride,
                   "attention: a page holds a multiple of 16 tokens");
      return {span.k, span.v, span.stride * hd, span.stride * hd, hd, span.count};
    }
    return {panels, span.v, (span.count + kLanes - 1) / kLanes * kLanes * hd, hd, span.stride, span.count};
  }

  AttentionShape shape_;
  const AttentionSegment* segments_ = nullptr;
  std::int64_t count_ = 0;
  std::vector<SpanView> views_;
  std::vector<std::size_t> first_view_;
  std::vector<std::int64_t> keys_;
  std::vector<PackJob> jobs_;
  std::vector<AttentionTask> tasks_;
  std::int64_t most_keys_ = 0;
  double operations_ = 0;
};

const float* first_key(const AttentionGradSegment& s) { return s.prefix.count > 0 ? s.prefix.k : s.own.k; }

/// Neighbours that share rows, as [begin, end) of the segment list: whoever shares adds to the same memory.
std::vector<std::pair<std::int64_t, std::int64_t>> sharing_groups(const AttentionGradSegment* segments,
                                                                  std::int64_t count) {
  std::vector<std::pair<std::int64_t, std::int64_t>> groups;
  std::vector<const float*> names;
  for (std::int64_t i = 0; i < count; ++i) {
    if (segments[i].rows == 0) continue;
    if (!names.empty() && names.back() == first_key(segments[i])) {
      groups.back().second = i + 1;
    } else {
      names.push_back(first_key(segments[i]));
      groups.emplace_back(i, i + 1);
    }
  }
  std::sort(names.begin(), names.end());
  TROUPE_CHECK(std::adjacent_find(names.begin(), names.end()) == names.end(),
               "attention_backward: segments that share a prefix must be neighbours");
  return groups;
}

/// attention_forward with operands of bfloat16: every task packs what its rows see.
void attend_pairs(const AttentionShape& shape, const AttentionSegment* segments, std::int64_t count) {
  std::vector<PairAttentionTask> tasks;
  double operations = 0;
  std::int64_t most_keys = 0;
  const KernelTable& isa = table();
  const ProductTable& products = isa.products[static_cast<std::size_t>(Precision::kBfloat16)];
  const std::int64_t pieces = (2 * max_threads() + count * shape.kv_heads - 1) / (count * shape.kv_heads);
  for (std::int64_t i = 0; i < count; ++i) {
    const AttentionSegment& s = segments[i];
    std::int64_t keys = 0;
    for (std::int64_t j = 0; j < s.span_count; ++j) keys += s.spans[j].count;
    TROUPE_CHECK(keys >= s.rows, "attention: a segment has fewer keys than queries");
    most_keys = std::max(most_keys, keys);
    operations += 2.0 * static_cast<double>(s.rows * shape.heads * shape.head_dim * keys);
    const std::int64_t q_row = shape.heads * shape.head_dim;
    const std::int64_t step = std::max(kPairGradRows, (s.rows + pieces - 1) / pieces);
    for (std::int64_t end = s.rows; end > 0; end -= step) {  // the longest first
      for (std::int64_t head = 0; head < shape.kv_heads; ++head)
        tasks.push_back({shape, &s, s.q_stride == 0 ? q_row : s.q_stride, s.out_stride == 0 ? q_row : s.out_stride, keys,
                         head, std::max<std::int64_t>(0, end - step), end, &products, nullptr});
    }
  }
  const std::int64_t floats = pair_attention_scratch_floats(shape, most_keys);
  run_tasks(tasks.size(), threads_for(operations), [&](std::size_t i) {
    tasks[i].scratch = scratch(Scratch::kTask, floats);
    isa.pair_attention(tasks[i]);
  });
}

}  // namespace

void attention_forward(const AttentionShape& shape, const AttentionSegment* segments, std::int64_t count) {
  if (count == 0) return;
  const AttentionShape full = resolved(shape);
  if (full.precision == Precision::kBfloat16) return attend_pairs(full, segments, count);
  thread_local Batch kept;
  Batch& batch = kept;  // a thread-local one would be each thread's own below
  batch.set(full, segments, count);
  const int threads = threads_for(batch.operations());
  batch.pack(threads);
  std::vector<AttentionTask>& tasks = batch.tasks(threads);
  const KernelTable& isa = table();
  const std::int64_t floats = attention_scratch_floats(full, batch.most_keys());
  run_tasks(tasks.size(), threads, [&](std::size_t i) {
    tasks[i].scratch = scratch(Scratch::kTask, floats);
    isa.attention(tasks[i]);
  });
}

void attention_backward(const AttentionShape& shape, const AttentionGradStrides& strides,
                        const AttentionGradSegment* segments, std::int64_t count) {
  const AttentionShape full = resolved(shape);
  AttentionGradStrides steps = strides;
  const std::int64_t q_row = full.heads * full.head_dim;
  const std::int64_t kv_row = full.kv_heads * full.head_dim;
  if (steps.q == 0) steps.q = q_row;
  if (steps.out == 0) steps.out = q_row;
  if (steps.dq == 0) steps.dq = q_row;
  if (steps.kv == 0) steps.kv = kv_row;
  if (steps.dkv == 0) steps.dkv = kv_row;
  double operations = 0;
  std::int64_t most_keys = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const AttentionGradSegment& s = segments[i];
    TROUPE_CHECK(s.own.count == s.rows, "attention_backward: a segment's own keys are its query rows");
    most_keys = std::max(most_keys, s.prefix.count + s.own.count);
    operations += 10.0 * static_cast<double>(s.rows * q_row * (s.prefix.count + s.own.count));
  }
  const auto groups = sharing_groups(segments, count);
  const std::size_t tasks = groups.size() * static_cast<std::size_t>(full.kv_heads);
  const KernelTable& isa = table();
  const bool pairs = full.precision == Precision::kBfloat16;
  const auto run = pairs ? isa.pair_attention_grad : isa.attention_grad;
  const std::int64_t floats = pairs ? pair_attention_grad_scratch_floats(full, most_keys) : attention_grad_scratch_floats(full, most_keys);
  run_tasks(tasks, threads_for(operations), [&](std::size_t i) {
    const auto [begin, end] = groups[i / static_cast<std::size_t>(full.kv_heads)];
    run({full, steps, segments + begin, end - begin, static_cast<std::int64_t>(i % static_cast<std::size_t>(full.kv_heads)),
         scratch(Scratch::kTask, floats), &isa.products[static_cast<std::size_t>(full.precision)]});
  });
}

}  // namespace troupe::kernels
