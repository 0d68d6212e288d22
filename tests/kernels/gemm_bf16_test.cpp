// Products of bfloat16: the promised order, one operation at a time, against every instruction set.
#include <bit>
#include <cfloat>

#include "kernels/cpu/reference.h"
#include "kernels/gemm.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Floats;
constexpr Precision kBf16 = Precision::kBfloat16;

struct Shape {
  std::int64_t n, k;
};
const std::vector<Shape> kShapes = {{1, 1},   {5, 3},    {16, 32}, {17, 33},  {31, 64},
                                    {48, 80}, {150, 70}, {64, 96}, {70, 576}, {20, 1100}};

float flushed(float x) { return std::abs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }

float rounded(float x) {
  if (std::isnan(x)) return x;
  const auto raw = std::bit_cast<std::uint32_t>(flushed(x));
  return std::bit_cast<float>((raw + 0x7fff + (raw >> 16 & 1)) & 0xffff0000u);
}

/// One chain over [begin, end): blocks of 32, each (sum over even) + (sum over odd).
template <class X, class W>
float chain(const X& x, const W& w, std::int64_t begin, std::int64_t end) {
  float sum = begin == end ? -0.0f : 0.0f;
  for (std::int64_t block = begin; block < end; block += 32) {
    float part[2] = {};
    for (std::int64_t c = block; c < block + 32; ++c) {  // numbers behind the end count as 0
      float& p = part[c % 2];
      p = flushed(c < end ? std::fma(rounded(x(c)), rounded(w(c)), p) : p + 0.0f);
    }
    sum = flushed(sum + flushed(part[0] + part[1]));
  }
  return sum;
}

float promised(const float* x, const float* w, std::int64_t k) {
  float chains[4];
  for (int q = 0; q < 4; ++q) {
    chains[q] = chain([&](std::int64_t c) { return x[c]; }, [&](std::int64_t c) { return w[c]; },
                      chain_begin(k, kBf16, q), chain_begin(k, kBf16, q + 1));
  }
  return (chains[0] + chains[1]) + (chains[2] + chains[3]);
}

Floats promised(const Floats& x, const Floats& w, std::int64_t m, const Shape& s) {
  Floats y;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < s.n; ++j)
      y.push_back(promised(&x[static_cast<std::size_t>(i * s.k)], &w[static_cast<std::size_t>(j * s.k)], s.k));
  return y;
}

PackedMatrix packed(const Floats& w, const Shape& s) {
  PackedMatrix matrix;
  matrix.pack(w.data(), s.n, s.k, 0, kBf16);
  return matrix;
}

/// Everything that rounding, flushing and signs of zero could tell apart.
Floats awkward(std::int64_t n, std::uint64_t seed) {
  Floats x = testing::filled(n, seed);
  Rng rng(seed + 1000, RngStream::kTest);
  for (float& v : x) {
    switch (rng.below(8)) {
      case 0:
        v *= 1e-20f;
        break;
      case 1:
        v *= 1e-38f;
        break;
      case 2:
        v = std::bit_cast<float>((std::bit_cast<std::uint32_t>(v) & 0xffff0000u) | 0x8000u);  // a tie
        break;
      case 3:
        v = -0.0f;
        break;
      case 4:
        v = std::bit_cast<float>(
            static_cast<std::uint32_t>(rng.below(0x00ffffff)));  // round about the least normal one
        break;
      default:
        break;
    }
  }
  return x;
}

TEST(MatmulBf16, HasTheBitsTheHeaderPromisesAtEveryRowCountVariantAndThreadCount) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(std::to_string(s.n) + " x " + std::to_string(s.k));
    const Floats x = testing::filled(100 * s.k, 1), w = testing::filled(s.n * s.k, 2);
    const Floats want = promised(x, w, 100, s);
    const PackedMatrix matrix = packed(w, s);
    testing::for_variants([&] {
      for (std::int64_t m : testing::kRowCounts) {
        Floats y(static_cast<std::size_t>(m * s.n), -7);
        matmul(x.data(), m, matrix, y.data());
        EXPECT_EQ(testing::bit_difference(y.data(), want.data(), y.size()), "") << "rows " << m;
      }
    });
  }
}

TEST(MatmulBf16, RoundsAndFlushesAlikeEverywhere) {
  for (const Shape& s : {Shape{40, 100}, {33, 288}}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const Floats x = awkward(21 * s.k, seed), w = awkward(s.n * s.k, 100 + seed);
      const Floats want = promised(x, w, 21, s);
      testing::for_variants([&] {
        Floats y(want.size());
        matmul(x.data(), 21, packed(w, s), y.data());
        EXPECT_EQ(testing::bit_difference(y, want), "");
      });
    }
  }
}

TEST(MatmulBf16, InfinityAndNanArrive) {
  const Shape s{17, 64};
  const Floats w(static_cast<std::size_t>(s.n * s.k), 1);
  testing::for_variants([&] {
    for (const float bad : {INFINITY, -INFINITY, std::nanf(""), std::bit_cast<float>(0x7f800001u)}) {
      Floats x(static_cast<std::size_t>(s.k), 0.5f);
      x[37] = bad;
      Floats y(static_cast<std::size_t>(s.n));
      matmul(x.data(), 1, packed(w, s), y.data());
      for (float v : y) EXPECT_TRUE(std::isnan(bad) ? std::isnan(v) : v == bad) << v;
    }
  });
}

TEST(MatmulBf16, TallProductsAndColumnsOfWiderRowsKeepTheBits) {
  const Shape s{37, 96};
  const std::int64_t m = 700;
  const Floats x = testing::filled(m * 110, 3), w = testing::filled(s.n * s.k, 4);
  const PackedMatrix matrix = packed(w, s);
  testing::for_variants([&] {
    Floats y(static_cast<std::size_t>(m * 50), -7);
    matmul(x.data() + 5, m, matrix, y.data() + 2, 50, 110);
    for (std::int64_t i = 0; i < m; i += 23) {
      for (std::int64_t j = 0; j < 50; ++j) {
        const float want = j < 2 || j >= 39 ? -7
                                            : promised(&x[static_cast<std::size_t>(i * 110 + 5)],
                                                       &w[static_cast<std::size_t>((j - 2) * s.k)], s.k);
        ASSERT_EQ(y[static_cast<std::size_t>(i * 50 + j)], want) << i << ", " << j;
      }
    }
  });
}

TEST(MatmulBf16, PiecesOfKKeepTheBits) {
  for (const Shape s : {Shape{32, 32}, Shape{34, 64}, Shape{64, 96}, Shape{64, 128}, Shape{70, 577}, Shape{70, 1100},
                        Shape{40, 2000}, Shape{100, 2500}, Shape{33, 5000}}) {
    SCOPED_TRACE(std::to_string(s.n) + " x " + std::to_string(s.k));
    const Floats x = testing::filled(150 * s.k, 3);
    const Floats w = testing::filled(s.n * s.k, 4);
    const PackedMatrix matrix = packed(w, s);
    for (const int chains : {1, 2, 4}) {
      Floats one_by_one(static_cast<std::size_t>(150 * s.n));
      for (std::int64_t i = 0; i < 150; ++i) {
        matmul(&x[static_cast<std::size_t>(i * s.k)], 1, matrix, &one_by_one[static_cast<std::size_t>(i * s.n)], 0, 0,
               chains);
      }
      testing::for_variants([&] {
        for (const std::int64_t m : {32, 65, 150}) {
          Floats y(static_cast<std::size_t>(m * s.n));
          matmul(x.data(), m, matrix, y.data(), 0, 0, chains);
          EXPECT_EQ(testing::bit_difference(y.data(), one_by_one.data(), y.size()), "") << m << " rows, chains " << chains;
        }
      });
    }
  }
}

TEST(MatmulBf16, ErrorIsThatOfTheRoundedOperands) {
  for (std::int64_t k : {64, 576, 2048}) {
    const Shape s{64, k};
    const Floats x = testing::filled(8 * k, 5), w = testing::filled(s.n * k, 6);
    Floats y(static_cast<std::size_t>(8 * s.n));
    matmul(x.data(), 8, packed(w, s), y.data());
    Floats rx, rw;
    for (float v : x) rx.push_back(rounded(v));
    for (float v : w) rw.push_back(rounded(v));
    const auto sums = testing::errors_of(y, reference::matmul(testing::widened(rx), testing::widened(rw), 8, s.n, k));
    EXPECT_LT(sums.relative, 1e-6) << "k " << k;
    const auto all = testing::errors_of(y, reference::matmul(testing::widened(x), testing::widened(w), 8, s.n, k));
    EXPECT_LT(all.relative, 4e-3) << "k " << k;
    EXPECT_GT(all.relative, 1e-4) << "k " << k;
  }
}

TEST(PackedMatrixBf16, PanelsHoldPairsAndZerosWhereNumbersLack) {
  for (const Shape& s : {Shape{1, 1}, {16, 31}, {17, 32}, {31, 49}, {48, 100}}) {
    SCOPED_TRACE(std::to_string(s.n) + " x " + std::to_string(s.k));
    const Floats w = testing::filled(s.n * s.k, 10);
    const std::int64_t padded = (s.k + 31) / 32 * 32;
    testing::for_variants([&] {
      const PackedMatrix matrix = packed(w, s);
      ASSERT_EQ(matrix.bytes(), static_cast<std::size_t>((s.n + 15) / 16 * 16 * padded * 2));
      const auto* pairs = reinterpret_cast<const std::uint16_t*>(matrix.data());
      for (std::int64_t row = 0; row < (s.n + 15) / 16 * 16; ++row) {
        for (std::int64_t c = 0; c < padded; ++c) {
          const float number = row < s.n && c < s.k ? w[static_cast<std::size_t>(row * s.k + c)] : 0;
          const std::uint32_t want = std::bit_cast<std::uint32_t>(rounded(number)) >> 16;
          ASSERT_EQ(pairs[row / 16 * 16 * padded + c / 2 * 32 + row % 16 * 2 + c % 2], want) << row << ", " << c;
        }
      }
    });
  }
}

}  // namespace
}  // namespace troupe::kernels
