/// @file
/// Sums over long arrays whose bits do not depend on threads or alignment.
#pragma once

#include <cstdint>

namespace troupe::kernels {

/// Sum of x[i]^2 in float64: 16 lanes inside fixed blocks of 4096 elements, blocks added in order.
/// Determinism: depends on x and n only. A sum over several tensors is the caller's, in a fixed order of names.
[[nodiscard]] double sum_of_squares(const float* x, std::int64_t n);

/// Sum of x[i] in float64, in the same order.
[[nodiscard]] double sum(const float* x, std::int64_t n);

/// True when no element is infinite or NaN.
[[nodiscard]] bool all_finite(const float* x, std::int64_t n);

/// y[i] += x[i].
void add(const float* x, float* y, std::int64_t n);

/// x[i] *= factor.
void scale(float* x, std::int64_t n, float factor);

}  // namespace troupe::kernels
