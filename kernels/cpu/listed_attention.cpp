#include "kernels/listed_attention.h"

#include <algorithm>
#include <cmath>
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
  /// Appends rows [begin, end).
  void list(std::int64_t begin, std::int64_t end, std::vector<const float*>& rows) const {
    auto span = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
    for (std::int64_t i = begin; i < end; ++span) {
      const std::int64_t stop = std::min(ends_[static_cast<std::size_t>(span)], end);
      const std::int64_t first = ends_[static_cast<std::size_t>(span)] - spans_[span].count;
      for (; i < stop; ++i) rows.push_back(spans_[span].rows + (i - first) * spans_[span].stride);
    }
  }

 private:
  const RowSpan* spans_;
  std::vector<std::int64_t> ends_;
};

/// One query head over the listed rows.
void attend(const ListedShape& shape, std::int64_t head, const float* q, const std::vector<const float*>& rows,
            float* p, float* out) {
  const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const auto n = static_cast<std::int64_t>(rows.size());
  float most = shape.sinks != nullptr ? shape.sinks[head] : -INFINITY;
  for (std::int64_t i = 0; i < n; ++i) {
    p[i] = dot(q, rows[static_cast<std::size_t>(i)] + kv_head * shape.key_dim, shape.key_dim) * shape.scale;
    most = std::max(most, p[i]);
  }
  for (std::int64_t i = 0; i < n; ++i) p[i] -= most;
  if (shape.sinks != nullptr) p[n] = shape.sinks[head] - most;
  const std::int64_t terms = n + (shape.sinks != nullptr ? 1 : 0);
  table().exponential(p, p, terms);
  double sum = 0;
  for (std::int64_t i = 0; i < terms; ++i) sum += static_cast<double>(p[i]);
  const auto inverse = static_cast<float>(1 / sum);
  std::fill_n(out, shape.value_dim, 0.0F);
  for (std::int64_t i = 0; i < n; ++i) {
    const float weight = p[i] * inverse;
    const float* v = rows[static_cast<std::size_t>(i)] + shape.value_offset + kv_head * shape.value_dim;
    for (std::int64_t d = 0; d < shape.value_dim; ++d) out[d] += weight * v[d];
  }
}

struct Work {
  std::vector<const float*> rows;
  std::vector<float> p;
};

void attend_row(const ListedShape& shape, const ListedSegment& s, const Finder& tokens, const Finder& entries,
                std::int64_t row, Work& work) {
  const std::int64_t end = s.before + row + 1;
  const std::int64_t begin = shape.window > 0 ? std::max<std::int64_t>(0, end - shape.window) : 0;
  work.rows.clear();
  tokens.list(begin, end, work.rows);
  for (std::int64_t i = 0; i < s.chosen_max; ++i) {
    const std::int32_t entry = s.chosen[row * s.chosen_max + i];
    if (entry < 0) break;
    work.rows.push_back(entries.row(entry));
  }
  work.p.resize(work.rows.size() + 1);
  for (std::int64_t head = 0; head < shape.heads; ++head)
    attend(shape, head, s.q + row * s.q_stride + head * shape.key_dim, work.rows, work.p.data(),
           s.out + row * s.out_stride + head * shape.value_dim);
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
               Work work;
               for (std::int64_t i = begin; i < end; ++i) {
                 const Place place = places[static_cast<std::size_t>(i)];
                 const auto segment = static_cast<std::size_t>(place.segment);
                 attend_row(shape, segments[segment], tokens[segment], entries[segment], place.row, work);
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
