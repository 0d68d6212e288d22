#include "kernels/isa.h"

#include "kernels/cpu/table.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Floats;

TEST(Isa, ThisCpuRunsAVariantAndUsesTheBest) {
  ASSERT_TRUE(check_cpu().has_value()) << check_cpu().error().message;
  EXPECT_EQ(active_isa(), supported_isas().back());
}

TEST(Exponential, IsWithinTwoUlpOfTheRightOne) {
  for (Isa isa : supported_isas()) {
    const KernelTable& t = isa == Isa::kAvx2 ? avx2_table() : avx512_table();
    double worst = 0;
    Floats x;
    for (int i = 0; i <= 200000; ++i) x.push_back(-87.3f + 175.6f * static_cast<float>(i) / 200000.0f);
    Floats y(x.size());
    t.exponential(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double right = std::exp(static_cast<double>(x[i]));
      const auto nearest = static_cast<float>(right);
      const double ulp = std::nextafter(nearest, std::numeric_limits<float>::infinity()) - nearest;
      worst = std::max(worst, std::abs(static_cast<double>(y[i]) - right) / ulp);
    }
    EXPECT_LE(worst, 2.0) << to_string(isa);
  }
}

TEST(Exponential, KnowsTheEnds) {
  const float inf = std::numeric_limits<float>::infinity();
  const Floats x = {0, -0.0f, -inf, -88, -1e30f, std::nanf(""), 1, 1000};
  for (Isa isa : supported_isas()) {
    const KernelTable& t = isa == Isa::kAvx2 ? avx2_table() : avx512_table();
    Floats y(x.size());
    t.exponential(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_EQ(y[3], 0.0f);
    EXPECT_EQ(y[4], 0.0f);
    EXPECT_TRUE(std::isnan(y[5]));
    EXPECT_NEAR(y[6], 2.7182818f, 3e-7f);
    EXPECT_TRUE(std::isfinite(y[7]) && y[7] > 2e38f);
  }
}

TEST(Logarithm, IsWithinTwoUlpOfTheRightOne) {
  for (Isa isa : supported_isas()) {
    const KernelTable& t = isa == Isa::kAvx2 ? avx2_table() : avx512_table();
    double worst = 0;
    Floats x;
    for (float v = 1.0f; v < 3e6f; v *= 1.00007f) x.push_back(v);
    for (float v = 1.0f; v > 1e-30f; v *= 0.9991f) x.push_back(v);
    Floats y(x.size());
    t.logarithm(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double right = std::log(static_cast<double>(x[i]));
      const auto nearest = static_cast<float>(std::abs(right));
      const double ulp = std::nextafter(nearest, std::numeric_limits<float>::infinity()) - nearest;
      worst = std::max(worst, std::abs(static_cast<double>(y[i]) - right) / ulp);
    }
    EXPECT_LE(worst, 2.0) << to_string(isa);
  }
}

TEST(Exponential, VariantsPositionsAndTailsGiveTheSameBits) {
  const Floats x = testing::filled(1003, 5, 80);
  Floats whole(x.size());
  avx2_table().exponential(x.data(), whole.data(), 1003);
  for (Isa isa : supported_isas()) {
    const KernelTable& t = isa == Isa::kAvx2 ? avx2_table() : avx512_table();
    for (std::size_t begin = 0; begin < 70; ++begin) {
      for (std::size_t n : {1u, 7u, 15u, 16u, 17u, 31u, 33u}) {
        Floats y(n);
        t.exponential(x.data() + begin, y.data(), static_cast<std::int64_t>(n));
        EXPECT_EQ(testing::bit_difference(y.data(), whole.data() + begin, n), "");
      }
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
