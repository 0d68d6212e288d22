// rmsnorm.h, rope.h, swiglu.h: errors against float64, bits, gradients.
#include <functional>

#include "kernels/cpu/reference.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Doubles;
using testing::Floats;

const std::vector<std::int64_t> kWidths = {1, 2, 7, 15, 16, 17, 48, 63, 64, 65, 100, 128, 576, 1000};

/// d f / d x[i] by central differences in float64.
double slope(Doubles x, std::size_t i, const std::function<double(const Doubles&)>& f) {
  const double h = 1e-5;
  const double at = x[i];
  x[i] = at + h;
  const double above = f(x);
  x[i] = at - h;
  return (above - f(x)) / (2 * h);
}

double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

RmsNormForward norm_args(const Floats& x, const Floats& w, Floats& y, Floats& inv, std::int64_t rows) {
  RmsNormForward a;
  a.x = x.data();
  a.weight = w.data();
  a.y = y.data();
  a.inv_rms = inv.data();
  a.rows = rows;
  a.cols = static_cast<std::int64_t>(w.size());
  a.eps = 1e-6f;
  return a;
}

TEST(RmsNorm, ErrorAndBitsOverWidthsRowsVariantsAndThreads) {
  for (std::int64_t cols : kWidths) {
    SCOPED_TRACE(cols);
    const Floats x = testing::filled(100 * cols, 1, 3);
    const Floats w = testing::filled(cols, 2);
    Floats want;
    Floats want_inv;
    testing::for_variants([&] {
      for (std::int64_t rows : testing::kRowCounts) {
        Floats y(static_cast<std::size_t>(rows * cols));
        Floats inv(static_cast<std::size_t>(rows));
        rmsnorm_forward(norm_args(x, w, y, inv, rows));
        if (rows == 100) {
          if (want.empty()) {
            want = y;
            want_inv = inv;
          }
          EXPECT_EQ(testing::bit_difference(y, want), "");
        }
        if (!want.empty()) {
          EXPECT_EQ(testing::bit_difference(y.data(), want.data(), y.size()), "") << "rows " << rows;
          EXPECT_EQ(testing::bit_difference(inv.data(), want_inv.data(), inv.size()), "") << "rows " << rows;
        }
      }
    });
    const auto right = reference::rmsnorm(testing::widened(x), testing::widened(w), 1e-6f);
    EXPECT_LT(testing::errors_of(want, right.y).relative, 2e-7);
    EXPECT_LT(testing::errors_of(want_inv, right.inv_rms).relative, 2e-7);
  }
}

TEST(RmsNorm, HeadsInsideWiderRowsInPlace) {
  const std::int64_t rows = 5, heads = 3, cols = 32, stride = 200;
  const Floats x = testing::filled(rows * stride, 3);
  const Floats w = testing::filled(cols, 4);
  testing::for_variants([&] {
    Floats fused = x;
    Floats inv(rows * heads);
    RmsNormForward a = norm_args(fused, w, fused, inv, rows);
    a.x = a.y = fused.data() + 40;
    a.heads = heads;
    a.x_stride = a.y_stride = stride;
    rmsnorm_forward(a);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        Floats alone(&x[static_cast<std::size_t>(row * stride + 40 + head * cols)],
                     &x[static_cast<std::size_t>(row * stride + 40 + head * cols)] + cols);
        Floats y(cols);
        Floats one(1);
        rmsnorm_forward(norm_args(alone, w, y, one, 1));
        EXPECT_EQ(
            testing::bit_difference(y.data(), &fused[static_cast<std::size_t>(row * stride + 40 + head * cols)], cols),
            "");
        EXPECT_EQ(inv[static_cast<std::size_t>(row * heads + head)], one[0]);
      }
      EXPECT_EQ(fused[static_cast<std::size_t>(row * stride + 39)], x[static_cast<std::size_t>(row * stride + 39)]);
      EXPECT_EQ(fused[static_cast<std::size_t>(row * stride + 136)], x[static_cast<std::size_t>(row * stride + 136)]);
    }
  });
}

RmsNormBackward norm_grad_args(const Floats& x, const Floats& w, const Floats& inv, const Floats& dy, Floats& dx,
                               Floats& dw) {
  RmsNormBackward b;
  b.x = x.data();
  b.weight = w.data();
  b.inv_rms = inv.data();
  b.dy = dy.data();
  b.dx = dx.data();
  b.dweight = dw.data();
  b.cols = static_cast<std::int64_t>(w.size());
  b.rows = static_cast<std::int64_t>(x.size() / w.size());
  return b;
}

TEST(RmsNormBackward, ErrorAndBits) {
  for (std::int64_t cols : kWidths) {
    SCOPED_TRACE(cols);
    const Floats x = testing::filled(150 * cols, 5, 2);
    const Floats dy = testing::filled(150 * cols, 6);
    const Floats w = testing::filled(cols, 7);
    Floats y(x.size()), inv(150), want_dx, want_dw;
    rmsnorm_forward(norm_args(x, w, y, inv, 150));
    testing::for_variants([&] {
      Floats dx(x.size()), dw(w.size());
      rmsnorm_backward(norm_grad_args(x, w, inv, dy, dx, dw));
      if (want_dx.empty()) {
        want_dx = dx;
        want_dw = dw;
      }
      EXPECT_EQ(testing::bit_difference(dx, want_dx), "");
      EXPECT_EQ(testing::bit_difference(dw, want_dw), "");
      Floats over = dy;  // dx written over dy
      RmsNormBackward b = norm_grad_args(x, w, inv, over, over, dw);
      rmsnorm_backward(b);
      EXPECT_EQ(testing::bit_difference(over, want_dx), "");
      EXPECT_EQ(testing::bit_difference(dw, want_dw), "");
    });
    const auto right =
        reference::rmsnorm_backward(testing::widened(x), testing::widened(w), testing::widened(dy), 1e-6f);
    EXPECT_LT(testing::errors_of(want_dx, right.dx).largest, 3e-6 * (cols < 8 ? 100 : 1));
    EXPECT_LT(testing::errors_of(want_dw, right.dweight).relative, 1e-6);
  }
}

TEST(RmsNormBackward, ReferenceAgreesWithFiniteDifferences) {
  const Doubles x = testing::widened(testing::filled(3 * 10, 8));
  const Doubles w = testing::widened(testing::filled(10, 9));
  const Doubles dy = testing::widened(testing::filled(3 * 10, 10));
  const auto grad = reference::rmsnorm_backward(x, w, dy, 1e-3);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(grad.dx[i], slope(x, i, [&](const Doubles& at) { return dot(reference::rmsnorm(at, w, 1e-3).y, dy); }),
                1e-8);
  }
  for (std::size_t i = 0; i < w.size(); ++i) {
    EXPECT_NEAR(grad.dweight[i],
                slope(w, i, [&](const Doubles& at) { return dot(reference::rmsnorm(x, at, 1e-3).y, dy); }), 1e-8);
  }
}

TEST(RmsNorm, RefusesBadArgumentsOnAStream) {
  Floats x(4), w(4), y(4), inv(1);
  RmsNormForward a = norm_args(x, w, y, inv, 1);
  EXPECT_TRUE(rmsnorm_forward(a, Stream{}).has_value());
  a.cols = 0;
  EXPECT_EQ(rmsnorm_forward(a, Stream{}).error().code, ErrorCode::kInvalidArgument);
  a.cols = 4;
  a.weight = nullptr;
  EXPECT_EQ(rmsnorm_forward(a, Stream{}).error().code, ErrorCode::kInvalidArgument);
}

TEST(Rope, TurnsLikeTheReferenceAndBack) {
  for (std::int64_t rotary : {2, 16, 32, 34, 64}) {
    SCOPED_TRACE(rotary);
    const std::int64_t rows = 40, heads = 3, dim = 64, stride = 250, half = rotary / 2;
    const Floats x = testing::filled(rows * stride, 11);
    Floats cos(static_cast<std::size_t>(rows * half)), sin(cos.size());
    for (std::size_t i = 0; i < cos.size(); ++i) {
      cos[i] = std::cos(static_cast<float>(i) * 0.37f);
      sin[i] = std::sin(static_cast<float>(i) * 0.37f);
    }
    Floats want;
    testing::for_variants([&] {
      Floats turned = x;
      Rope r{turned.data() + 5, cos.data(), sin.data(), rows, heads, dim, stride, rotary, false};
      rope(r);
      if (want.empty()) want = turned;
      EXPECT_EQ(testing::bit_difference(turned, want), "");
      Floats one(x.begin() + 7 * stride, x.begin() + 8 * stride);
      rope({one.data() + 5, &cos[static_cast<std::size_t>(7 * half)], &sin[static_cast<std::size_t>(7 * half)], 1,
            heads, dim, stride, rotary, false});
      EXPECT_EQ(testing::bit_difference(one.data(), &want[7 * stride], stride), "") << "a row alone";
      r.inverse = true;
      rope(r);
      EXPECT_LT(testing::errors_of(turned, testing::widened(x)).largest, 5e-7);
    });
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto begin = static_cast<std::size_t>(row * stride + 5);
      const auto table = static_cast<std::size_t>(row * half);
      const Doubles in(x.begin() + static_cast<std::ptrdiff_t>(begin),
                       x.begin() + static_cast<std::ptrdiff_t>(begin) + heads * dim);
      const Doubles c(cos.begin() + static_cast<std::ptrdiff_t>(table),
                      cos.begin() + static_cast<std::ptrdiff_t>(table) + half);
      const Doubles s(sin.begin() + static_cast<std::ptrdiff_t>(table),
                      sin.begin() + static_cast<std::ptrdiff_t>(table) + half);
      const Doubles right = reference::rope(in, c, s, heads, dim, rotary, false);
      const Floats got(&want[begin], &want[begin] + heads * dim);
      EXPECT_LT(testing::errors_of(got, right).largest, 2e-7);
    }
  }
}

TEST(Swiglu, ErrorAndBitsAtEveryWidthAndPosition) {
  for (std::int64_t cols : kWidths) {
    SCOPED_TRACE(cols);
    const std::int64_t rows = 64;
    const Floats fused = testing::filled(rows * 2 * cols, 12, 30);
    Floats want;
    testing::for_variants([&] {
      Floats y(static_cast<std::size_t>(rows * cols));
      swiglu_forward({fused.data(), fused.data() + cols, y.data(), rows, cols, 2 * cols, 0});
      if (want.empty()) want = y;
      EXPECT_EQ(testing::bit_difference(y, want), "");
      for (std::int64_t from = 0; from < std::min<std::int64_t>(cols, 20); ++from) {  // an unaligned slice of a row
        Floats part(static_cast<std::size_t>(cols - from));
        swiglu_forward({fused.data() + from, fused.data() + cols + from, part.data(), 1, cols - from, 0, 0});
        EXPECT_EQ(testing::bit_difference(part.data(), want.data() + from, part.size()), "") << "from " << from;
      }
    });
    Doubles gate, up;
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      for (std::size_t c = 0; c < static_cast<std::size_t>(cols); ++c) {
        gate.push_back(fused[row * 2 * static_cast<std::size_t>(cols) + c]);
        up.push_back(fused[(row * 2 + 1) * static_cast<std::size_t>(cols) + c]);
      }
    }
    EXPECT_LT(testing::errors_of(want, reference::swiglu(gate, up)).relative, 2e-7);
  }
}

TEST(Swiglu, FarGatesAreExact) {
  const Floats gate = {100, -100, 1e30f, -1e30f, 0};
  const Floats up = {2, 2, 1, 1, 5};
  Floats y(5);
  swiglu_forward({gate.data(), up.data(), y.data(), 1, 5, 0, 0});
  EXPECT_EQ(y[0], 200.0f);
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[2], 1e30f);
  EXPECT_EQ(y[3], 0.0f);
  EXPECT_EQ(y[4], 0.0f);
}

TEST(SwigluBackward, ErrorBitsAndFiniteDifferences) {
  const std::int64_t rows = 50, cols = 77;
  const Floats gate = testing::filled(rows * cols, 13, 6);
  const Floats up = testing::filled(rows * cols, 14);
  const Floats dy = testing::filled(rows * cols, 15);
  Floats want_gate, want_up;
  testing::for_variants([&] {
    Floats dgate(gate.size()), dup(gate.size());
    swiglu_backward({gate.data(), up.data(), dy.data(), dgate.data(), dup.data(), rows, cols, 0, 0, 0});
    if (want_gate.empty()) {
      want_gate = dgate;
      want_up = dup;
    }
    EXPECT_EQ(testing::bit_difference(dgate, want_gate), "");
    EXPECT_EQ(testing::bit_difference(dup, want_up), "");
    Floats g = gate, u = up;  // gradients written over the inputs
    swiglu_backward({g.data(), u.data(), dy.data(), g.data(), u.data(), rows, cols, 0, 0, 0});
    EXPECT_EQ(testing::bit_difference(g, want_gate), "");
    EXPECT_EQ(testing::bit_difference(u, want_up), "");
  });
  const Doubles g = testing::widened(gate), u = testing::widened(up), d = testing::widened(dy);
  const auto right = reference::swiglu_backward(g, u, d);
  EXPECT_LT(testing::errors_of(want_gate, right.dgate).relative, 3e-7);
  EXPECT_LT(testing::errors_of(want_up, right.dup).relative, 3e-7);
  for (std::size_t i = 0; i < 30; ++i) {
    EXPECT_NEAR(right.dgate[i], slope(g, i, [&](const Doubles& at) { return dot(reference::swiglu(at, u), d); }), 1e-6);
    EXPECT_NEAR(right.dup[i], slope(u, i, [&](const Doubles& at) { return dot(reference::swiglu(g, at), d); }), 1e-6);
  }
}

}  // namespace
}  // namespace troupe::kernels
