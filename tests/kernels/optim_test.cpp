// adamw.h and norms.h.
#include "kernels/adamw.h"
#include "kernels/cpu/reference.h"
#include "kernels/norms.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Floats;

struct State {
  Floats param, m, v;
};

AdamW step_of(State& s, const Floats& grad, std::size_t begin, std::size_t end, std::int64_t step) {
  AdamW a;
  a.param = s.param.data() + begin;
  a.grad = grad.data() + begin;
  a.m = s.m.data() + begin;
  a.v = s.v.data() + begin;
  a.n = static_cast<std::int64_t>(end - begin);
  a.lr = 1e-2;
  a.weight_decay = 0.1;
  a.step = step;
  a.grad_scale = 0.5f;
  return a;
}

TEST(AdamW, FollowsTheReferenceForTenSteps) {
  const std::size_t n = 1003;
  State s{testing::filled(n, 1), Floats(n), Floats(n)};
  std::vector<reference::AdamWState> right;
  for (float p : s.param) right.push_back({p, 0, 0});
  for (std::int64_t step = 1; step <= 10; ++step) {
    const Floats grad = testing::filled(n, 100 + static_cast<std::uint64_t>(step));
    adamw_step(step_of(s, grad, 0, n, step));
    for (std::size_t i = 0; i < n; ++i)
      right[i] = reference::adamw(right[i], 0.5 * static_cast<double>(grad[i]), 1e-2, 0.9, 0.95, 1e-8, 0.1, step);
  }
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_NEAR(s.param[i], right[i].param, 1e-6);
    EXPECT_NEAR(s.m[i], right[i].m, 1e-7);
    EXPECT_NEAR(s.v[i], right[i].v, 1e-7);
  }
}

TEST(AdamW, BitsDoNotDependOnSpansThreadsOrVariant) {
  const std::size_t n = 300007;
  const State start{testing::filled(n, 2), testing::filled(n, 3), Floats(n, 0.01f)};
  const Floats grad = testing::filled(n, 4);
  State want = start;
  adamw_step(step_of(want, grad, 0, n, 3));
  testing::for_variants([&] {
    for (std::size_t cut : {std::size_t{0}, std::size_t{1}, std::size_t{17}, std::size_t{150001}}) {
      State s = start;
      adamw_step(step_of(s, grad, 0, cut, 3));
      adamw_step(step_of(s, grad, cut, n, 3));
      EXPECT_EQ(testing::bit_difference(s.param, want.param), "") << "cut " << cut;
      EXPECT_EQ(testing::bit_difference(s.m, want.m), "") << "cut " << cut;
      EXPECT_EQ(testing::bit_difference(s.v, want.v), "") << "cut " << cut;
    }
  });
}

TEST(SumOfSquares, IsRightAndTheSameOnAnyNumberOfThreads) {
  for (std::int64_t n : {0, 1, 15, 16, 17, 4095, 4096, 4097, 1000003}) {
    const Floats x = testing::filled(n, 5, 1e-3f);
    double right = 0;
    double plain = 0;
    for (float v : x) {
      right += static_cast<double>(v) * static_cast<double>(v);
      plain += static_cast<double>(v);
    }
    const double want = sum_of_squares(x.data(), n);
    EXPECT_NEAR(want, right, 1e-12 * (right + 1e-300)) << n;
    EXPECT_NEAR(sum(x.data(), n), plain, 1e-9) << n;
    testing::for_variants([&] { EXPECT_EQ(sum_of_squares(x.data(), n), want) << n; });
  }
}

TEST(SumOfSquares, DoesNotOverflowOrVanish) {
  const Floats big(100, 1e30f);
  EXPECT_NEAR(sum_of_squares(big.data(), 100) / 1e62, 1, 1e-6);
  const Floats small(100, 1e-30f);
  EXPECT_NEAR(sum_of_squares(small.data(), 100) / 1e-58, 1, 1e-6);
}

TEST(AllFinite, FindsOneBadElementAnywhere) {
  Floats x = testing::filled(1000, 6);
  EXPECT_TRUE(all_finite(x.data(), 1000));
  for (std::size_t i : {std::size_t{0}, std::size_t{17}, std::size_t{999}}) {
    for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      const float was = x[i];
      x[i] = bad;
      EXPECT_FALSE(all_finite(x.data(), 1000));
      x[i] = was;
    }
  }
}

TEST(Scale, MultipliesEveryElement) {
  const Floats x = testing::filled(1001, 7);
  testing::for_variants([&] {
    Floats y = x;
    scale(y.data(), 1001, 0.25f);
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], x[i] * 0.25f);
  });
}

TEST(Add, IsTheSumOfEachPairAndWritesNothingElse) {
  for (std::int64_t n : {1, 15, 16, 17, 1001, 200000}) {
    const Floats x = testing::filled(n, 31), before = testing::filled(n + 1, 32);
    testing::for_variants([&] {
      Floats y = before;
      add(x.data(), y.data(), n);
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], before[i] + x[i]);
      EXPECT_EQ(y.back(), before.back());
    });
  }
}

}  // namespace
}  // namespace troupe::kernels
