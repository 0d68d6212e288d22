#include "kernels/pointwise.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"

namespace troupe::kernels {
namespace {

constexpr std::int64_t kBlock = 256;  // numbers on which the steps of a function work while they are in cache
constexpr double kOperations = 32;    // of one function, in units of a multiply-add

/// sigmoid(alpha x) of a block.
void sigmoid_block(const KernelTable& isa, const float* x, float alpha, float* y, std::int64_t n) {
  float e[kBlock];
  for (std::int64_t i = 0; i < n; ++i) e[i] = -std::abs(alpha * x[i]);
  isa.exponential(e, e, n);
  for (std::int64_t i = 0; i < n; ++i) y[i] = (alpha * x[i] < 0 ? e[i] : 1.0F) / (1.0F + e[i]);
}

/// max(x, 0) + log(1 + e), e = exp(-|x|); e / ((1 + e) - 1) takes back what rounding 1 + e lost.
void softplus_block(const KernelTable& isa, const float* x, float* y, std::int64_t n) {
  float e[kBlock];
  float log_u[kBlock];
  for (std::int64_t i = 0; i < n; ++i) e[i] = -std::abs(x[i]);
  isa.exponential(e, e, n);
  for (std::int64_t i = 0; i < n; ++i) log_u[i] = 1.0F + e[i];
  isa.logarithm(log_u, log_u, n);
  for (std::int64_t i = 0; i < n; ++i) {
    const float lost = (1.0F + e[i]) - 1.0F;
    const float tail = lost == 0 ? e[i] : log_u[i] * (e[i] / lost);
    y[i] = std::max(x[i], 0.0F) + tail;
  }
}

void tanh_block(const KernelTable& isa, const float* x, float* y, std::int64_t n) {
  float e[kBlock];
  for (std::int64_t i = 0; i < n; ++i) e[i] = -2.0F * std::abs(x[i]);
  isa.exponential(e, e, n);
  for (std::int64_t i = 0; i < n; ++i) y[i] = std::copysign((1.0F - e[i]) / (1.0F + e[i]), x[i]);
}

void block(const KernelTable& isa, Pointwise function, const float* x, float* y, std::int64_t n) {
  switch (function) {
    case Pointwise::kExp:
      isa.exponential(x, y, n);
      return;
    case Pointwise::kSigmoid:
      sigmoid_block(isa, x, 1.0F, y, n);
      return;
    case Pointwise::kSilu: {
      float s[kBlock];
      sigmoid_block(isa, x, 1.0F, s, n);
      for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * s[i];
      return;
    }
    case Pointwise::kSoftplus:
      softplus_block(isa, x, y, n);
      return;
    case Pointwise::kTanh:
      tanh_block(isa, x, y, n);
      return;
  }
}

template <class F>
void in_blocks(std::int64_t begin, std::int64_t end, F&& body) {
  for (std::int64_t i = begin; i < end; i += kBlock) body(i, std::min(kBlock, end - i));
}

}  // namespace

void pointwise(Pointwise function, const float* x, float* y, std::int64_t n) {
  const KernelTable& isa = table();
  run_ranges(n, kBlock, threads_for(kOperations * static_cast<double>(n)), [&](std::int64_t begin, std::int64_t end) {
    in_blocks(begin, end, [&](std::int64_t i, std::int64_t count) { block(isa, function, x + i, y + i, count); });
  });
}

void gated_unit(const GatedUnit& a) {
  const KernelTable& isa = table();
  const float limit = a.limit > 0 ? a.limit : INFINITY;
  const double operations = kOperations * static_cast<double>(a.rows * a.cols);
  run_ranges(a.rows, 1, threads_for(operations), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* gate = a.gate_up + row * 2 * a.cols;
      float* y = a.y + row * a.cols;
      in_blocks(0, a.cols, [&](std::int64_t i, std::int64_t n) {
        float g[kBlock];
        float s[kBlock];
        for (std::int64_t c = 0; c < n; ++c) g[c] = std::min(gate[i + c], limit);
        sigmoid_block(isa, g, a.alpha, s, n);
        for (std::int64_t c = 0; c < n; ++c) {
          const float up = std::clamp(gate[a.cols + i + c], -limit, limit) + a.up_offset;
          y[i + c] = up * (g[c] * s[c]);
        }
      });
    }
  });
}

void softcap(float* x, std::int64_t n, float multiplier, float cap) {
  const KernelTable& isa = table();
  run_ranges(n, kBlock, threads_for(kOperations * static_cast<double>(n)), [&](std::int64_t begin, std::int64_t end) {
    in_blocks(begin, end, [&](std::int64_t i, std::int64_t count) {
      for (std::int64_t c = i; c < i + count; ++c) x[c] *= multiplier;
      if (cap == 0) return;
      for (std::int64_t c = i; c < i + count; ++c) x[c] /= cap;
      tanh_block(isa, x + i, x + i, count);
      for (std::int64_t c = i; c < i + count; ++c) x[c] *= cap;
    });
  });
}

void rope_pairs(const RopePairs& a) {
  TROUPE_CHECK(2 * a.pairs <= a.head_dim, "rope_pairs: a head has fewer channels than rotate");
  const std::int64_t row = a.heads * a.head_dim;
  run_ranges(a.rows, 1, threads_for(4.0 * static_cast<double>(a.rows * row)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* c = a.cos + t * a.pairs;
      const float* s = a.sin + t * a.pairs;
      for (std::int64_t head = 0; head < a.heads; ++head) {
        float* x = a.x + t * row + (head + 1) * a.head_dim - 2 * a.pairs;
        for (std::int64_t i = 0; i < a.pairs; ++i) {
          const float sine = a.inverse ? -s[i] : s[i];
          const float p = x[2 * i];
          const float q = x[2 * i + 1];
          x[2 * i] = p * c[i] - q * sine;
          x[2 * i + 1] = q * c[i] + p * sine;
        }
      }
    }
  });
}

}  // namespace troupe::kernels
