#include "kernels/listed_attention.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"

namespace troupe::kernels {
namespace {

/// 16 lanes by channel, then a fixed tree.
float dot(const float* a, const float* b, std::int64_t n) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  for (std::int64_t l = 0; i + l < n; ++l) lanes[l] += a[i + l] * b[i + l];
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
    for (std::int64_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  return lanes[0];
}

/// Finds rows of a concatenation of spans.
class Finder {
 public:
  Finder(const RowSpan* spans, std::int64_t count) : spans_(spans) {
    std::int64_t end = 0;
    for (std::int64_t i = 0; i < count; ++i) ends_.push_back(end += spans[i].count);
  }
  [[nodiscard]] std::int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  [[nodiscard]] const float* row(std::int64_t index) const {
    const auto span = std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
    const std::int64_t first = span == 0 ? 0 : ends_[static_cast<std::size_t>(span) - 1];
    return spans_[span].rows + (index - first) * spans_[span].stride;
  }
  /// Calls add(run) for the parts of rows [begin, end), in order.
  template <class Add>
  void runs(std::int64_t begin, std::int64_t end, const Add& add) const {
    auto span = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
    for (std::int64_t i = begin; i < end; ++span) {
      const std::int64_t stop = std::min(ends_[static_cast<std::size_t>(span)], end);
      const std::int64_t first = ends_[static_cast<std::size_t>(span)] - spans_[span].count;
      if (stop > i) add(RowRun{spans_[span].rows + (i - first) * spans_[span].stride, spans_[span].stride, stop - i});
      i = std::max(i, stop);
    }
  }

 private:
  const RowSpan* spans_;
  std::vector<std::int64_t> ends_;
};

/// The rows that a query sees, as runs that end with blocks of kListedKeys.
class RowList {
 public:
  void clear() {
    runs_.clear();
    first_.assign(1, 0);
    keys_ = 0;
  }
  void add(RowRun run) {
    while (run.count > 0) {
      const std::int64_t room = kListedKeys - keys_ % kListedKeys;
      const std::int64_t n = std::min(run.count, room);
      runs_.push_back({run.rows, run.stride, n});
      keys_ += n;
      if (n == room) first_.push_back(static_cast<std::int64_t>(runs_.size()));
      run.rows += n * run.stride;
      run.count -= n;
    }
  }
  [[nodiscard]] std::int64_t keys() const { return keys_; }
  [[nodiscard]] const RowRun* runs() const { return runs_.data(); }
  [[nodiscard]] const std::int64_t* first_run() const { return first_.data(); }

 private:
  std::vector<RowRun> runs_;
  std::vector<std::int64_t> first_;
  std::int64_t keys_ = 0;
};

void attend_row(const ListedShape& shape, const ListedSegment& s, const Finder& tokens, const Finder& entries,
                std::int64_t row, RowList& list) {
  const std::int64_t end = s.before + row + 1;
  list.clear();
  tokens.runs(shape.window > 0 ? std::max<std::int64_t>(0, end - shape.window) : 0, end,
              [&](const RowRun& run) { list.add(run); });
  for (std::int64_t i = 0; i < s.chosen_max; ++i) {
    const std::int32_t entry = s.chosen[row * s.chosen_max + i];
    if (entry < 0) break;
    list.add({entries.row(entry), 0, 1});
  }
  const std::int64_t group = shape.heads / shape.kv_heads, floats = listed_scratch_floats(shape, list.keys());
  float* memory = scratch(Scratch::kTask, floats + group);
  table().listed({&shape, s.q + row * s.q_stride, s.out + row * s.out_stride, list.runs(), list.first_run(),
                  list.keys(), memory + floats, memory});
}

}  // namespace

void listed_attention(const ListedShape& shape, const ListedSegment* segments, std::int64_t count) {
  TROUPE_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "listed_attention: kv_heads must divide heads");
  struct Place {
    std::int64_t segment, row;
  };
  std::vector<Place> places;
  std::vector<Finder> tokens;
  std::vector<Finder> entries;
  double keys = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const ListedSegment& s = segments[i];
    tokens.emplace_back(s.tokens, s.token_spans);
    entries.emplace_back(s.entries, s.entry_spans);
    TROUPE_CHECK(tokens.back().count() >= s.before + s.rows, "listed_attention: fewer rows than the queries see");
    for (std::int64_t row = 0; row < s.rows; ++row) places.push_back({i, row});
    const std::int64_t seen = shape.window > 0 ? std::min(shape.window, s.before + s.rows) : s.before + s.rows;
    keys += static_cast<double>(s.rows * (seen + s.chosen_max));
  }
  const double operations = keys * static_cast<double>(shape.heads * (shape.key_dim + shape.value_dim));
  run_ranges(static_cast<std::int64_t>(places.size()), 1, threads_for(operations),
             [&](std::int64_t begin, std::int64_t end) {
               RowList list;
               for (std::int64_t i = begin; i < end; ++i) {
                 const Place place = places[static_cast<std::size_t>(i)];
                 const auto segment = static_cast<std::size_t>(place.segment);
                 attend_row(shape, segments[segment], tokens[segment], entries[segment], place.row, list);
               }
             });
}

void choose_entries(const EntryChoice& a) {
  const Finder keys(a.keys, a.key_spans);
  const std::int64_t most = std::min(keys.count(), (a.before + a.rows) / a.ratio);
  const double operations = static_cast<double>(a.rows * most * a.heads * a.dim);
  run_ranges(a.rows, 1, threads_for(operations), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> scores;
    std::vector<std::int32_t> order;
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t visible = (a.before + row + 1) / a.ratio;
      TROUPE_CHECK(visible <= keys.count(), "choose_entries: fewer keys than entries");
      scores.assign(static_cast<std::size_t>(visible), 0.0F);
      for (std::int64_t w = 0; w < visible; ++w) {
        const float* key = keys.row(w);
        for (std::int64_t h = 0; h < a.heads; ++h) {
          const float product = std::max(dot(a.q + (row * a.heads + h) * a.dim, key, a.dim), 0.0F) * a.scale;
          scores[static_cast<std::size_t>(w)] += product * a.weights[row * a.heads + h];
        }
      }
      if (a.scores != nullptr) std::copy(scores.begin(), scores.end(), a.scores + row * a.score_stride);
      order.resize(scores.size());
      std::iota(order.begin(), order.end(), 0);
      const auto kept = std::min<std::int64_t>(a.chosen_max, visible);
      std::partial_sort(order.begin(), order.begin() + kept, order.end(), [&](std::int32_t x, std::int32_t y) {
        const float sx = scores[static_cast<std::size_t>(x)];
        const float sy = scores[static_cast<std::size_t>(y)];
        return sx != sy ? sx > sy : x < y;
      });
      std::sort(order.begin(), order.begin() + kept);
      std::int32_t* list = a.chosen + row * a.chosen_max;
      std::copy_n(order.begin(), kept, list);
      std::fill(list + kept, list + a.chosen_max, -1);
    }
  });
}

}  // namespace troupe::kernels
