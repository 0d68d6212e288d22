/// @file
/// What the kernel tests share: filled arrays, comparison of bits, error statistics, loops over variants and threads.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/isa.h"
#include "kernels/team.h"

namespace troupe::kernels::testing {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

/// n numbers in (-scale, scale), the same for the same seed.
inline Floats filled(std::int64_t n, std::uint64_t seed, float scale = 1) {
  Floats x(static_cast<std::size_t>(n));
  Rng rng(seed, RngStream::kTest);
  for (float& v : x) v = static_cast<float>(2 * rng.uniform() - 1) * scale;
  return x;
}

inline Doubles widened(const Floats& x) { return {x.begin(), x.end()}; }

/// To the nearest bfloat16, ties to even.
inline float to_bfloat16(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&x, &bits, sizeof(bits));
  return x;
}

/// The first difference in bits, or "" when there is none.
inline std::string bit_difference(const float* a, const float* b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (std::memcmp(a + i, b + i, sizeof(float)) != 0) {
      return "element " + std::to_string(i) + ": " + std::to_string(a[i]) + " and " + std::to_string(b[i]);
    }
  }
  return "";
}
inline std::string bit_difference(const Floats& a, const Floats& b) {
  return a.size() != b.size() ? "sizes differ" : bit_difference(a.data(), b.data(), a.size());
}

/// Errors of float results against float64 ones.
struct Errors {
  double largest = 0;   ///< Largest |difference|.
  double rms = 0;       ///< Root of the mean squared difference.
  double relative = 0;  ///< rms / root of the mean squared reference.
};
inline Errors errors_of(const Floats& got, const Doubles& want) {
  Errors e;
  double squares = 0;
  double size = 0;
  EXPECT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!(d <= e.largest)) e.largest = d;
    squares += d * d;
    size += want[i] * want[i];
  }
  e.rms = std::sqrt(squares / static_cast<double>(got.size()));
  e.relative = size > 0 ? std::sqrt(squares / size) : std::sqrt(squares);
  return e;
}

/// Runs body() once per instruction set with 1 thread, with 2, and with a team of 2, which splits small work too.
/// Restores both settings.
template <class F>
void for_variants(F&& body) {
  const Isa isa = active_isa();
  const int threads = max_threads();
  for (Isa variant : supported_isas()) {
    for (int count : {1, 2}) {
      SCOPED_TRACE(std::string(to_string(variant)) + ", threads " + std::to_string(count));
      set_isa(variant);
      set_max_threads(count);
      body();
    }
    SCOPED_TRACE(std::string(to_string(variant)) + ", a team of 2");
    with_team([&] { body(); });
  }
  set_isa(isa);
  set_max_threads(threads);
}

/// The numbers of rows at which a tile, a block or a thread begins or ends.
inline const std::vector<std::int64_t> kRowCounts = {1, 2, 3, 5, 6, 7, 13, 16, 17, 64, 100};

}  // namespace troupe::kernels::testing
