#include "kernels/norms.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"

namespace troupe::kernels {
namespace {

constexpr std::int64_t kBlock = 4096;

template <class Term>
double block_sum(const float* x, std::int64_t n, Term term) {
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] += term(static_cast<double>(x[i + j]));
  }
  for (std::int64_t j = 0; i + j < n; ++j) lanes[j] += term(static_cast<double>(x[i + j]));
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

/// Blocks are summed by whichever thread, and added in order.
template <class Term>
double blocked_sum(const float* x, std::int64_t n, Term term) {
  const std::int64_t blocks = (n + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<std::size_t>(blocks));
  run_ranges(blocks, 1, threads_for(2.0 * static_cast<double>(n)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      sums[static_cast<std::size_t>(b)] = block_sum(x + b * kBlock, std::min(kBlock, n - b * kBlock), term);
    }
  });
  double total = 0;
  for (double s : sums) total += s;
  return total;
}

}  // namespace

double sum_of_squares(const float* x, std::int64_t n) {
  return blocked_sum(x, n, [](double v) { return v * v; });
}

double sum(const float* x, std::int64_t n) {
  return blocked_sum(x, n, [](double v) { return v; });
}

bool all_finite(const float* x, std::int64_t n) {
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bad |= static_cast<std::uint32_t>((bits & 0x7f800000u) == 0x7f800000u);
  }
  return bad == 0;
}

void add(const float* x, float* y, std::int64_t n) {
  const KernelTable& isa = table();
  run_ranges(n, kBlock, threads_for(static_cast<double>(n)),
             [&](std::int64_t begin, std::int64_t end) { isa.add(x + begin, y + begin, end - begin); });
}

void scale(float* x, std::int64_t n, float factor) {
  const KernelTable& isa = table();
  run_ranges(n, kBlock, threads_for(static_cast<double>(n)),
             [&](std::int64_t begin, std::int64_t end) { isa.scale(x + begin, end - begin, factor); });
}

}  // namespace troupe::kernels
