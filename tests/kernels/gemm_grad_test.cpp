// The backward products of linear layers, and what holds for both precisions: transposed packing, shards of K.
#include <cfloat>

#include "kernels/cpu/reference.h"
#include "kernels/gemm.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Floats;

class Products : public ::testing::TestWithParam<Precision> {
 protected:
  [[nodiscard]] std::size_t floats_of(const PackedMatrix& m) const { return m.bytes() / sizeof(float); }
};

Floats transposed(const Floats& w, std::int64_t n, std::int64_t k) {
  Floats t(w.size());
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t c = 0; c < k; ++c)
      t[static_cast<std::size_t>(c * n + i)] = w[static_cast<std::size_t>(i * k + c)];
  return t;
}

TEST_P(Products, PackingTransposedIsPackingTheTranspose) {
  for (const std::int64_t k : {1, 16, 24, 33, 100}) {
    for (const auto& sizes : {std::vector<std::int64_t>{1}, {32, 16, 16}, {5, 20, 7}, {70}}) {
      std::int64_t n = 0;
      for (std::int64_t s : sizes) n += s;
      const Floats w = testing::filled(n * k, 11);
      std::vector<PackedMatrix::Part> parts;
      std::int64_t row = 0;
      for (std::int64_t s : sizes) {
        parts.push_back({&w[static_cast<std::size_t>(row * k)], s});
        row += s;
      }
      testing::for_variants([&] {
        PackedMatrix got, want;
        got.pack_transposed(parts.data(), static_cast<std::int64_t>(parts.size()), k, GetParam());
        want.pack(transposed(w, n, k).data(), k, n, 0, GetParam());
        ASSERT_EQ(got.bytes(), want.bytes());
        ASSERT_EQ(got.rows(), k);
        ASSERT_EQ(got.cols(), n);
        EXPECT_EQ(testing::bit_difference(got.data(), want.data(), floats_of(got)), "") << n << " x " << k;
      });
    }
  }
}

/// Tensor parallel 4 and 2: pieces of K, packed and multiplied apart, summed by the tree.
TEST_P(Products, ShardsOfKSummedByTheTreeHaveTheBitsOfTheWhole) {
  for (const std::int64_t k : {8, 40, 128, 576, 1000}) {
    const std::int64_t n = 70, m = 19;
    const Floats x = testing::filled(m * k, 1), w = testing::filled(n * k, 2);
    const auto shard = [&](int of, int index) {
      const std::int64_t begin = chain_begin(k, GetParam(), index * 4 / of);
      const std::int64_t end = chain_begin(k, GetParam(), (index + 1) * 4 / of);
      Floats y(static_cast<std::size_t>(m * n), -0.0f);
      if (begin == end) return y;
      PackedMatrix matrix;
      matrix.pack(w.data() + begin, n, end - begin, k, GetParam());
      matmul(x.data() + begin, m, matrix, y.data(), 0, k, 4 / of);
      return y;
    };
    const auto sum = [](Floats a, const Floats& b) {
      for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
      return a;
    };
    PackedMatrix whole;
    whole.pack(w.data(), n, k, 0, GetParam());
    testing::for_variants([&] {
      Floats y(static_cast<std::size_t>(m * n));
      matmul(x.data(), m, whole, y.data());
      const Floats quarters = sum(sum(shard(4, 0), shard(4, 1)), sum(shard(4, 2), shard(4, 3)));
      EXPECT_EQ(testing::bit_difference(quarters, y), "") << "degree 4, k " << k;
      EXPECT_EQ(testing::bit_difference(sum(shard(2, 0), shard(2, 1)), y), "") << "degree 2, k " << k;
    });
  }
}

float flushed(float x, bool flush) { return flush && std::abs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }

/// The numbers that a product sees.
Floats seen(Floats x, Precision precision) {
  if (precision == Precision::kFloat32) return x;
  for (float& v : x) {
    std::uint32_t raw = 0;
    std::memcpy(&raw, &v, sizeof raw);
    raw = (raw + 0x7fff + (raw >> 16 & 1)) & 0xffff0000u;
    std::memcpy(&v, &raw, sizeof raw);
  }
  return x;
}

/// dW of a whole, in the promised order. Shapes: dy [m][ldy], x [m][ldx].
Floats promised(const Floats& dy, std::int64_t ldy, const Floats& x, std::int64_t ldx, std::int64_t m, std::int64_t n,
                std::int64_t k, Precision precision, const Floats& before) {
  const Floats a = seen(dy, precision), b = seen(x, precision);
  const bool pairs = precision == Precision::kBfloat16;
  Floats dw;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < k; ++j) {
      float sum = before.empty() ? 0 : before[static_cast<std::size_t>(i * k + j)];
      for (std::int64_t first = 0; first < m; first += gradient_rows(precision)) {
        const std::int64_t end = std::min(m, first + gradient_rows(precision)), step = pairs ? 32 : end - first;
        float chain = 0;
        for (std::int64_t block = first; block < end; block += step) {
          float part[2] = {};
          for (std::int64_t t = block; t < block + step; ++t) {
            float& p = part[pairs ? t % 2 : 0];
            if (t < end)
              p = flushed(
                  std::fma(a[static_cast<std::size_t>(t * ldy + i)], b[static_cast<std::size_t>(t * ldx + j)], p),
                  pairs);
          }
          chain = pairs ? flushed(chain + flushed(part[0] + part[1], pairs), pairs) : part[0];
        }
        sum = before.empty() && first == 0 ? chain : sum + chain;
      }
      dw.push_back(sum);
    }
  }
  return dw;
}

TEST_P(Products, WeightGradientHasThePromisedBits) {
  struct Size {
    std::int64_t m, n, k;
  };
  for (const Size& s : {Size{1, 5, 3},
                        {31, 17, 33},
                        {32, 32, 16},
                        {33, 48, 40},
                        {511, 7, 20},
                        {512, 13, 16},
                        {513, 40, 47},
                        {1100, 12, 35},
                        {100, 70, 96}}) {
    SCOPED_TRACE(std::to_string(s.m) + " rows, " + std::to_string(s.n) + " x " + std::to_string(s.k));
    const std::int64_t ldy = s.n + 3, ldx = s.k + 5;
    const Floats dy = testing::filled(s.m * ldy, 21), x = testing::filled(s.m * ldx, 22);
    const Floats before = testing::filled(s.n * s.k, 23);
    const Floats fresh = promised(dy, ldy, x, ldx, s.m, s.n, s.k, GetParam(), {});
    const Floats added = promised(dy, ldy, x, ldx, s.m, s.n, s.k, GetParam(), before);
    testing::for_variants([&] {
      for (const bool add : {false, true}) {
        Floats dw = before;
        weight_gradient({dy.data(), x.data(), dw.data(), s.m, s.n, s.k, ldy, ldx, add, GetParam()});
        EXPECT_EQ(testing::bit_difference(dw, add ? added : fresh), "") << "add " << add;
      }
    });
  }
}

TEST_P(Products, WeightGradientOfNoRowsIsZero) {
  Floats dw(6, 3);
  weight_gradient({nullptr, nullptr, dw.data(), 0, 2, 3, 0, 0, true, GetParam()});
  EXPECT_EQ(dw, Floats(6, 3));
  weight_gradient({nullptr, nullptr, dw.data(), 0, 2, 3, 0, 0, false, GetParam()});
  EXPECT_EQ(dw, Floats(6, 0));
}

TEST_P(Products, GradientsAreThoseOfTheProduct) {
  const std::int64_t m = 600, n = 50, k = 36;
  const Floats x = testing::filled(m * k, 31), w = testing::filled(n * k, 32), dy = testing::filled(m * n, 33);
  Floats dx(x.size()), dw(w.size());
  PackedMatrix turned;
  const PackedMatrix::Part part{w.data(), n};
  turned.pack_transposed(&part, 1, k, GetParam());
  matmul(dy.data(), m, turned, dx.data());
  weight_gradient({dy.data(), x.data(), dw.data(), m, n, k, 0, 0, false, GetParam()});
  const double tolerance = GetParam() == Precision::kFloat32 ? 1e-6 : 4e-3;
  const auto wide = [](const Floats& v) { return testing::widened(v); };
  EXPECT_LT(testing::errors_of(dx, reference::matmul(wide(dy), wide(transposed(w, n, k)), m, k, n)).relative,
            tolerance);
  EXPECT_LT(testing::errors_of(dw, reference::matmul(wide(transposed(dy, m, n)), wide(transposed(x, m, k)), n, k, m))
                .relative,
            tolerance);
}

INSTANTIATE_TEST_SUITE_P(Precisions, Products, ::testing::Values(Precision::kFloat32, Precision::kBfloat16),
                         [](const auto& each) { return each.param == Precision::kFloat32 ? "float32" : "bfloat16"; });

}  // namespace
}  // namespace troupe::kernels
