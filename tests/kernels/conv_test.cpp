// The causal convolution and its gradient: error against float64, bits, history.
#include <algorithm>

#include "kernels/cpu/reference.h"
#include "kernels/delta_net.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Doubles;
using testing::Floats;

struct Case {
  std::int64_t rows, channels, taps;
  Floats x, history, weight, dy;

  Case(std::int64_t n, std::int64_t c, std::int64_t k)
      : rows(n), channels(c), taps(k), x(testing::filled(n * c, 1)), history(testing::filled((k - 1) * c, 2)),
        weight(testing::filled(c * k, 3)), dy(testing::filled(n * c, 4)) {}
  [[nodiscard]] CausalConv conv(bool with_history, Floats& y) const {
    return {x.data(), with_history ? history.data() : nullptr, weight.data(), y.data(), rows, channels, taps};
  }
};

struct Grads {
  Floats dx, dhistory, dweight;
};
/// Of the first `rows` rows; dweight begins as ones.
Grads backward(const Case& k, bool with_history, std::int64_t rows) {
  Floats unused;
  Grads g{Floats(static_cast<std::size_t>(rows * k.channels), 7), Floats(k.history.size(), 7), Floats(k.weight.size(), 1)};
  CausalConvGrad args{k.conv(with_history, unused), k.dy.data(), g.dx.data(), g.dhistory.data(), g.dweight.data()};
  args.forward.rows = rows;
  causal_conv_backward(args);
  return g;
}

/// Every number of rows, channels of whole and broken vectors and blocks, short and long taps.
template <class F>
void for_cases(const F& body) {
  for (const std::int64_t rows : testing::kRowCounts)
    for (const auto& [channels, taps] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {16, 4}, {37, 5}, {530, 4}, {40, 32}}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, " << channels << " channels, " << taps << " taps");
      body(Case(rows, channels, taps));
    }
}

TEST(CausalConv, IsRightWhateverComputesIt) {
  for_cases([](const Case& k) {
    for (const bool with_history : {false, true}) {
      const Doubles history = with_history ? testing::widened(k.history) : Doubles(k.history.size());
      const Doubles right = reference::causal_conv(testing::widened(k.x), history, testing::widened(k.weight), k.channels, k.taps);
      Floats first;
      testing::for_variants([&] {
        Floats y(k.x.size(), 7);
        causal_conv(k.conv(with_history, y));
        EXPECT_LT(testing::errors_of(y, right).relative, 1e-6);
        if (first.empty()) first = y;
        EXPECT_EQ(testing::bit_difference(y, first), "");
      });
    }
  });
}

TEST(CausalConvBackward, IsRightWhateverComputesIt) {
  for_cases([](const Case& k) {
    for (const bool with_history : {false, true}) {
      const Doubles history = with_history ? testing::widened(k.history) : Doubles(k.history.size());
      reference::ConvGrad right = reference::causal_conv_backward(testing::widened(k.x), history, testing::widened(k.weight),
                                                                  testing::widened(k.dy), k.channels, k.taps);
      for (double& w : right.dweight) w += 1;
      Grads first;
      testing::for_variants([&] {
        const Grads g = backward(k, with_history, k.rows);
        EXPECT_LT(testing::errors_of(g.dx, right.dx).relative, 1e-6);
        if (k.taps > 1) {
          EXPECT_LT(testing::errors_of(g.dhistory, right.dhistory).relative, 1e-6);
        }
        EXPECT_LT(testing::errors_of(g.dweight, right.dweight).relative, 1e-6);
        if (first.dx.empty()) first = g;
        EXPECT_EQ(testing::bit_difference(g.dx, first.dx), "");
        EXPECT_EQ(testing::bit_difference(g.dhistory, first.dhistory), "");
        EXPECT_EQ(testing::bit_difference(g.dweight, first.dweight), "");
      });
    }
  });
}

TEST(CausalConvBackward, RowsFarBehindDoNotReachARow) {
  const Case k(100, 37, 4);
  const Grads whole = backward(k, true, k.rows);
  for (const std::int64_t rows : testing::kRowCounts) {
    const Grads some = backward(k, true, rows);
    const std::int64_t complete = rows == k.rows ? rows : std::max<std::int64_t>(rows - k.taps + 1, 0);
    EXPECT_EQ(testing::bit_difference(some.dx.data(), whole.dx.data(), static_cast<std::size_t>(complete * k.channels)), "") << rows;
  }
}

// The reference itself: the slope of <dy, y>.
TEST(CausalConvReference, ItsGradientIsTheSlope) {
  const Case k(7, 3, 4);
  const Doubles x = testing::widened(k.x), history = testing::widened(k.history), weight = testing::widened(k.weight);
  const Doubles dy = testing::widened(k.dy);
  const reference::ConvGrad g = reference::causal_conv_backward(x, history, weight, dy, k.channels, k.taps);
  Doubles in[3] = {x, history, weight};
  const auto loss = [&] {
    const Doubles y = reference::causal_conv(in[0], in[1], in[2], k.channels, k.taps);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  const Doubles* gradients[3] = {&g.dx, &g.dhistory, &g.dweight};
  for (std::size_t which = 0; which < 3; ++which)
    for (std::size_t i = 0; i < in[which].size(); ++i) {
      const double kept = in[which][i];
      in[which][i] = kept + 1e-5;
      const double up = loss();
      in[which][i] = kept - 1e-5;
      const double down = loss();
      in[which][i] = kept;
      EXPECT_NEAR((*gradients[which])[i], (up - down) / 2e-5, 1e-8) << which << " " << i;
    }
}

TEST(CausalConv, SeesItsHistory) {
  constexpr std::int64_t kRows = 20, kChannels = 6, kTaps = 4;
  const Floats x = testing::filled(kRows * kChannels, 8);
  const Floats weight = testing::filled(kChannels * kTaps, 9);
  Floats whole(x.size()), rest(x.size());
  causal_conv({x.data(), nullptr, weight.data(), whole.data(), kRows, kChannels, kTaps});
  for (std::int64_t t = 0; t < kRows; ++t)
    for (std::int64_t c = 0; c < kChannels; ++c) {
      double sum = 0;
      for (std::int64_t j = 0; j < kTaps; ++j)
        if (t - kTaps + 1 + j >= 0)
          sum += static_cast<double>(weight[static_cast<std::size_t>(c * kTaps + j)]) * static_cast<double>(x[static_cast<std::size_t>((t - kTaps + 1 + j) * kChannels + c)]);
      ASSERT_NEAR(whole[static_cast<std::size_t>(t * kChannels + c)], sum / (1 + std::exp(-sum)), 1e-6);
    }
  causal_conv({&x[9 * kChannels], &x[6 * kChannels], weight.data(), rest.data(), kRows - 9, kChannels, kTaps});
  EXPECT_EQ(testing::bit_difference(rest.data(), &whole[9 * kChannels], (kRows - 9) * kChannels), "");
}

}  // namespace
}  // namespace troupe::kernels
