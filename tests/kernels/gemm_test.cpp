#include "kernels/gemm.h"

#include "kernels/cpu/reference.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Floats;

struct Shape {
  std::int64_t n, k;
};
const std::vector<Shape> kShapes = {{1, 1},   {5, 3},    {16, 2},   {17, 33},  {31, 64},    {48, 80},
                                    {96, 64}, {150, 70}, {576, 96}, {64, 576}, {1030, 130}, {20, 3001}};

PackedMatrix packed(const Floats& w, const Shape& s) {
  PackedMatrix matrix;
  matrix.pack(w.data(), s.n, s.k);
  return matrix;
}

/// The order the header promises, one fused multiply-add at a time.
float promised(const float* x, const float* w, std::int64_t k) {
  float chains[4] = {};
  for (std::int64_t q = 0; q < 4; ++q) {
    for (std::int64_t c = k * q / 4; c < k * (q + 1) / 4; ++c) chains[q] = std::fma(x[c], w[c], chains[q]);
  }
  return (chains[0] + chains[1]) + (chains[2] + chains[3]);
}

TEST(Matmul, HasTheBitsTheHeaderPromisesAtEveryRowCountVariantAndThreadCount) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(std::to_string(s.n) + " x " + std::to_string(s.k));
    const Floats x = testing::filled(100 * s.k, 1);
    const Floats w = testing::filled(s.n * s.k, 2);
    const PackedMatrix matrix = packed(w, s);
    Floats want(static_cast<std::size_t>(100 * s.n));
    for (std::int64_t i = 0; i < 100; ++i) {
      for (std::int64_t j = 0; j < s.n; ++j)
        want[static_cast<std::size_t>(i * s.n + j)] =
            promised(&x[static_cast<std::size_t>(i * s.k)], &w[static_cast<std::size_t>(j * s.k)], s.k);
    }
    testing::for_variants([&] {
      for (std::int64_t m : testing::kRowCounts) {
        Floats y(static_cast<std::size_t>(m * s.n), -7);
        matmul(x.data(), m, matrix, y.data());
        EXPECT_EQ(testing::bit_difference(y.data(), want.data(), y.size()), "") << "rows " << m;
      }
    });
  }
}

TEST(Matmul, TallProductsSplitOverRowsKeepTheBits) {
  const Shape s{80, 192};
  const std::int64_t m = 1200;
  const Floats x = testing::filled(m * s.k, 3);
  const Floats w = testing::filled(s.n * s.k, 4);
  const PackedMatrix matrix = packed(w, s);
  Floats one_by_one(static_cast<std::size_t>(m * s.n));
  for (std::int64_t i = 0; i < m; ++i)
    matmul(&x[static_cast<std::size_t>(i * s.k)], 1, matrix, &one_by_one[static_cast<std::size_t>(i * s.n)]);
  testing::for_variants([&] {
    Floats y(one_by_one.size());
    matmul(x.data(), m, matrix, y.data());
    EXPECT_EQ(testing::bit_difference(y, one_by_one), "");
  });
}

TEST(Matmul, PiecesOfALongKKeepTheBits) {
  const std::int64_t m = 150;
  for (const Shape s : {Shape{1100, 1600}, Shape{70, 5000}, Shape{33, 6001}}) {
    SCOPED_TRACE(std::to_string(s.n) + " x " + std::to_string(s.k));
    const Floats x = testing::filled(m * s.k, 3);
    const Floats w = testing::filled(s.n * s.k, 4);
    const PackedMatrix matrix = packed(w, s);
    for (const int chains : {1, 2, 4}) {
      Floats one_by_one(static_cast<std::size_t>(m * s.n));
      for (std::int64_t i = 0; i < m; ++i) {
        matmul(&x[static_cast<std::size_t>(i * s.k)], 1, matrix, &one_by_one[static_cast<std::size_t>(i * s.n)], 0, 0,
               chains);
      }
      testing::for_variants([&] {
        Floats y(one_by_one.size());
        matmul(x.data(), m, matrix, y.data(), 0, 0, chains);
        EXPECT_EQ(testing::bit_difference(y, one_by_one), "") << "chains " << chains;
      });
    }
  }
}

TEST(Matmul, ErrorIsThatOfFourShortChains) {
  for (std::int64_t k : {64, 576, 2048, 5000}) {
    const Shape s{64, k};
    const Floats x = testing::filled(8 * k, 5);
    const Floats w = testing::filled(s.n * k, 6);
    Floats y(static_cast<std::size_t>(8 * s.n));
    matmul(x.data(), 8, packed(w, s), y.data());
    const auto e = testing::errors_of(y, reference::matmul(testing::widened(x), testing::widened(w), 8, s.n, k));
    EXPECT_LT(e.relative, 1.5e-6) << "k " << k;
    EXPECT_GT(e.relative, 0.0);
  }
}

TEST(Matmul, WritesAndReadsColumnsOfWiderRows) {
  const Shape s{21, 40};
  const Floats x = testing::filled(9 * 50, 7);
  const Floats w = testing::filled(s.n * s.k, 8);
  testing::for_variants([&] {
    Floats y(9 * 30, -7);
    matmul(x.data() + 3, 9, packed(w, s), y.data() + 2, 30, 50);
    for (std::size_t i = 0; i < 9; ++i) {
      for (std::size_t j = 0; j < 30; ++j) {
        if (j >= 2 && j < 23) {
          EXPECT_EQ(y[i * 30 + j], promised(&x[i * 50 + 3], &w[(j - 2) * 40], 40));
        } else {
          EXPECT_EQ(y[i * 30 + j], -7) << "written outside the columns asked for";
        }
      }
    }
  });
}

TEST(PackedMatrix, PanelsHoldSixteenRowsSideBySideAndZerosForThoseThatLack) {
  for (const Shape& s : {Shape{1, 1}, {16, 15}, {17, 16}, {31, 17}, {48, 33}, {5, 128}, {64, 100}}) {
    SCOPED_TRACE(std::to_string(s.n) + " x " + std::to_string(s.k));
    const std::int64_t ldw = s.k + 3;
    const Floats w = testing::filled(s.n * ldw, 10);
    testing::for_variants([&] {
      PackedMatrix matrix;
      matrix.pack(w.data(), s.n, s.k, ldw);
      for (std::int64_t row = 0; row < (s.n + 15) / 16 * 16; ++row) {
        for (std::int64_t c = 0; c < s.k; ++c) {
          const float want = row < s.n ? w[static_cast<std::size_t>(row * ldw + c)] : 0;
          ASSERT_EQ(matrix.data()[row / 16 * 16 * s.k + c * 16 + row % 16], want) << row << ", " << c;
        }
      }
    });
  }
}

TEST(PackedMatrix, PartsBelowEachOtherAreOneMatrix) {
  for (const auto& sizes : {std::vector<std::int64_t>{32, 16, 16}, {5, 20, 7}}) {
    std::int64_t n = 0;
    for (std::int64_t s : sizes) n += s;
    const Floats w = testing::filled(n * 24, 11);
    std::vector<PackedMatrix::Part> parts;
    std::int64_t row = 0;
    for (std::int64_t s : sizes) {
      parts.push_back({&w[static_cast<std::size_t>(row * 24)], s});
      row += s;
    }
    PackedMatrix together;
    together.pack(parts.data(), static_cast<std::int64_t>(parts.size()), 24);
    const PackedMatrix one = packed(w, {n, 24});
    ASSERT_EQ(together.bytes(), one.bytes());
    EXPECT_EQ(testing::bit_difference(together.data(), one.data(), one.bytes() / sizeof(float)), "");
  }
}

TEST(PackedMatrix, PackingAgainSeesNewValuesAndSizes) {
  const Floats x = testing::filled(3 * 32, 12);
  PackedMatrix matrix;
  for (const Shape& s : {Shape{40, 32}, Shape{23, 32}, Shape{200, 32}}) {
    const Floats w = testing::filled(s.n * s.k, static_cast<std::uint64_t>(s.n));
    matrix.pack(w.data(), s.n, s.k);
    Floats y(static_cast<std::size_t>(3 * s.n));
    matmul(x.data(), 3, matrix, y.data());
    EXPECT_EQ(y.back(), promised(&x[64], &w[static_cast<std::size_t>((s.n - 1) * 32)], 32));
  }
}

TEST(MatmulDeath, RefusesWeightsThatWereNeverPacked) {
  PackedMatrix empty;
  float x = 0;
  EXPECT_DEATH(matmul(&x, 1, empty, &x), "not packed");
}

}  // namespace
}  // namespace troupe::kernels
