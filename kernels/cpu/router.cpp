#include "kernels/router.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#include "kernels/pointwise.h"

namespace troupe::kernels {
namespace {

/// exp(x - max x), and the sum in float64.
double shifted_exp(const float* x, std::int64_t n, float* y) {
  float most = -INFINITY;
  for (std::int64_t i = 0; i < n; ++i) most = std::max(most, x[i]);
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] - most;
  table().exponential(y, y, n);
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(y[i]);
  return sum;
}

void score(const Router& a, const float* logits, float* s) {
  switch (a.score) {
    case RouterScore::kSoftmax: {
      const double sum = shifted_exp(logits, a.experts, s);
      for (std::int64_t i = 0; i < a.experts; ++i) s[i] = static_cast<float>(static_cast<double>(s[i]) / sum);
      return;
    }
    case RouterScore::kSigmoid:
      pointwise(Pointwise::kSigmoid, logits, s, a.experts);
      return;
    case RouterScore::kSqrtSoftplus:
      pointwise(Pointwise::kSoftplus, logits, s, a.experts);
      for (std::int64_t i = 0; i < a.experts; ++i) s[i] = std::sqrt(s[i]);
      return;
    case RouterScore::kSoftmaxOfChosen:
      std::copy_n(logits, a.experts, s);
      return;
  }
}

/// Index of the largest of x that is not taken yet; the lowest one among equals.
std::int64_t take_best(const float* x, std::int64_t n, std::vector<char>& taken) {
  std::int64_t best = -1;
  for (std::int64_t i = 0; i < n; ++i)
    if (taken[static_cast<std::size_t>(i)] == 0 && (best < 0 || x[i] > x[best] || std::isnan(x[best]))) best = i;
  taken[static_cast<std::size_t>(best)] = 1;
  return best;
}

/// Marks the experts of all groups but the best ones as taken.
void close_groups(const Router& a, const float* rank, std::vector<char>& taken) {
  const std::int64_t size = a.experts / a.groups;
  std::vector<float> sums(static_cast<std::size_t>(a.groups));
  for (std::int64_t g = 0; g < a.groups; ++g) {
    float first = -INFINITY;
    float second = -INFINITY;
    for (std::int64_t i = g * size; i < (g + 1) * size; ++i) {
      if (rank[i] > first) {
        second = first;
        first = rank[i];
      } else if (rank[i] > second) {
        second = rank[i];
      }
    }
    sums[static_cast<std::size_t>(g)] = size > 1 ? first + second : first;
  }
  std::vector<char> kept(sums.size());
  for (std::int64_t i = 0; i < a.groups_kept; ++i) take_best(sums.data(), a.groups, kept);
  for (std::int64_t i = 0; i < a.experts; ++i) taken[static_cast<std::size_t>(i)] = !kept[static_cast<std::size_t>(i / size)];
}

struct RowWork {
  std::vector<float> s, rank;
  std::vector<char> taken;
};

void route_row(const Router& a, std::int64_t row, RowWork& work) {
  float* s = work.s.data();
  score(a, a.logits + row * a.experts, s);
  std::int32_t* choices = a.choices + row * a.chosen;
  if (a.fixed != nullptr) {
    std::copy_n(a.fixed + row * a.chosen, a.chosen, choices);
  } else {
    for (std::int64_t i = 0; i < a.experts; ++i)
      work.rank[static_cast<std::size_t>(i)] = a.correction != nullptr ? s[i] + a.correction[i] : s[i];
    std::fill(work.taken.begin(), work.taken.end(), 0);
    if (a.groups_kept < a.groups) close_groups(a, work.rank.data(), work.taken);
    for (std::int64_t j = 0; j < a.chosen; ++j)
      choices[j] = static_cast<std::int32_t>(take_best(work.rank.data(), a.experts, work.taken));
  }
  float* w = a.weights + row * a.chosen;
  for (std::int64_t j = 0; j < a.chosen; ++j) w[j] = s[choices[j]];
  if (a.score == RouterScore::kSoftmaxOfChosen) {
    const double sum = shifted_exp(w, a.chosen, w);
    for (std::int64_t j = 0; j < a.chosen; ++j) w[j] = static_cast<float>(static_cast<double>(w[j]) / sum);
  } else if (a.normalise) {
    float sum = 0;
    for (std::int64_t j = 0; j < a.chosen; ++j) sum += w[j];
    for (std::int64_t j = 0; j < a.chosen; ++j) w[j] /= sum + a.guard;
  }
  for (std::int64_t j = 0; j < a.chosen; ++j) w[j] *= a.scale;
}

}  // namespace

void route(const Router& a) {
  TROUPE_CHECK(a.chosen >= 1 && a.groups >= 1 && a.experts % a.groups == 0 && a.groups_kept >= 1 &&
                   a.chosen <= a.experts / a.groups * a.groups_kept,
               "route: more experts chosen than there are");
  const double operations = static_cast<double>(a.rows * a.experts) * static_cast<double>(32 + a.chosen);
  run_ranges(a.rows, 1, threads_for(operations), [&](std::int64_t begin, std::int64_t end) {
    const auto experts = static_cast<std::size_t>(a.experts);
    RowWork work{std::vector<float>(experts), std::vector<float>(experts), std::vector<char>(experts)};
    for (std::int64_t row = begin; row < end; ++row) route_row(a, row, work);
  });
}

}  // namespace troupe::kernels
