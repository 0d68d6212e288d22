// Products of matrices on CUDA: the bits of the CPU's on ordinary cores; on tensor cores within rounding, and invariant.
#include "kernels/gemm.h"

#include <numeric>

#include "kernels/cpu/reference.h"
#include "tests/kernels/cuda/target.h"

namespace troupe::kernels {
namespace {

using testing::Floats;
using testing::On;
using testing::bit_difference;

class CudaMatmulKernels : public testing::CudaKernels {};
TROUPE_ON_ALL_WAYS(CudaMatmulKernels);

struct Shape {
  std::int64_t m, n, k;
};
const std::vector<Shape> kShapes = {{1, 1, 1}, {1, 70, 3}, {3, 64, 64}, {17, 65, 130}, {40, 130, 77}, {66, 30, 300}};
constexpr Precision kPrecisions[] = {Precision::kFloat32, Precision::kBfloat16};

std::string name(const Shape& s, Precision p) {
  return std::to_string(s.m) + " x " + std::to_string(s.n) + " x " + std::to_string(s.k) + (p == Precision::kFloat32 ? " float32" : " bfloat16");
}

TEST_P(CudaMatmulKernels, ForwardHasTheBitsOfTheCpu) {
  for (const Shape& s : kShapes)
    for (const Precision precision : kPrecisions)
      for (const int chains : {4, 2, 1}) {
        SCOPED_TRACE(name(s, precision) + ", chains " + std::to_string(chains));
        const std::int64_t ldx = s.k + 5, ldy = s.n + 3;
        const Floats x = testing::filled(s.m * ldx, 1), w = testing::filled(s.n * s.k, 2);
        Floats y(static_cast<std::size_t>(s.m * ldy), -7);
        const On<float> dev_x(x), dev_w(w), dev_y(y);
        PackedMatrix packed;
        packed.pack(w.data(), s.n, s.k, 0, precision);
        matmul(x.data(), s.m, packed, y.data(), ldy, ldx, chains);
        CudaMatmul a;
        a.x = dev_x.get(), a.w = dev_w.get(), a.y = dev_y.get(), a.m = s.m, a.n = s.n, a.k = s.k, a.ldx = ldx, a.ldy = ldy;
        a.chains = chains, a.precision = precision;
        run(&CudaLibrary::matmul, a);
        EXPECT_EQ(bit_difference(dev_y.read(), y), "");
      }
}

TEST_P(CudaMatmulKernels, GradientsHaveTheBitsOfTheCpu) {
  for (const Shape& s : {Shape{1, 3, 5}, Shape{70, 33, 40}, Shape{600, 20, 18}, Shape{1100, 5, 66}})
    for (const Precision precision : kPrecisions) {
      SCOPED_TRACE(name(s, precision));
      const Floats x = testing::filled(s.m * s.k, 3), w = testing::filled(s.n * s.k, 4), dy = testing::filled(s.m * s.n, 5);
      Floats dx(x.size()), dw = testing::filled(s.n * s.k, 6);
      const On<float> dev_x(x), dev_w(w), dev_dy(dy), dev_dx(dx), dev_dw(dw);
      PackedMatrix packed;
      const PackedMatrix::Part part{w.data(), s.n};
      packed.pack_transposed(&part, 1, s.k, precision);
      matmul(dy.data(), s.m, packed, dx.data());
      CudaMatmul a;
      a.x = dev_dy.get(), a.w = dev_w.get(), a.y = dev_dx.get(), a.m = s.m, a.n = s.k, a.k = s.n, a.transposed = true, a.precision = precision;
      run(&CudaLibrary::matmul, a);
      EXPECT_EQ(bit_difference(dev_dx.read(), dx), "");
      for (const bool add : {true, false}) {
        WeightGradient g{dy.data(), x.data(), dw.data(), s.m, s.n, s.k, 0, 0, add, precision};
        weight_gradient(g);
        g.dy = dev_dy.get(), g.x = dev_x.get(), g.dw = dev_dw.get();
        run(&CudaLibrary::weight_gradient, g);
        EXPECT_EQ(bit_difference(dev_dw.read(), dw), "");
      }
    }
}

TEST_P(CudaMatmulKernels, GroupsAreEachAProductByThemselves) {
  constexpr std::int64_t kN = 33, kK = 50, kExperts = 5;
  const std::vector<std::int32_t> ends = {3, 3, 43, 60, 60};
  const Floats x = testing::filled(60 * kK, 7), w = testing::filled(kExperts * kN * kK, 8);
  Floats y(60 * kN);
  const On<float> dev_x(x), dev_w(w), dev_y(y);
  const On<std::int32_t> dev_ends(ends);
  for (const Precision precision : kPrecisions) {
    for (std::int64_t e = 0, begin = 0; e < kExperts; begin = ends[static_cast<std::size_t>(e++)]) {
      PackedMatrix packed;
      packed.pack(w.data() + e * kN * kK, kN, kK, 0, precision);
      matmul(x.data() + begin * kK, ends[static_cast<std::size_t>(e)] - begin, packed, y.data() + begin * kN);
    }
    CudaMatmul a;
    a.x = dev_x.get(), a.w = dev_w.get(), a.y = dev_y.get(), a.m = 60, a.n = kN, a.k = kK, a.precision = precision;
    a.group_ends = dev_ends.get(), a.groups = kExperts, a.max_group_rows = 40;
    run(&CudaLibrary::grouped_matmul, a);
    EXPECT_EQ(bit_difference(dev_y.read(), y), "");
  }
}

float widened(std::uint16_t bits) {
  const std::uint32_t raw = static_cast<std::uint32_t>(bits) << 16;
  float x = 0;
  std::memcpy(&x, &raw, sizeof x);
  return x;
}

TEST_P(CudaMatmulKernels, RoundingIsToNearestAndTiesToEven) {
  const Floats x = {1, 1.00390625F, 1.01171875F, -1.004F, 1e-40F, -0.0F, std::numeric_limits<float>::infinity(), 3.4e38F};
  const On<float> dev_x(x);
  const On<std::uint16_t> dev_y(std::vector<std::uint16_t>(x.size()));
  run(&CudaLibrary::round_bfloat16, CudaRound{dev_x.get(), dev_y.get(), static_cast<std::int64_t>(x.size())});
  EXPECT_EQ(dev_y.read(), (std::vector<std::uint16_t>{0x3f80, 0x3f80, 0x3f82, 0xbf81, 0, 0x8000, 0x7f80, 0x7f80}));
}

/// bfloat16 operands on the device, and the exact product.
struct TensorCase {
  explicit TensorCase(const Shape& s)
      : x(rounded(testing::filled(s.m * s.k, 9))), w(rounded(testing::filled(s.n * s.k, 10))), dev_x(x), dev_w(w),
        y(Floats(static_cast<std::size_t>(s.m * s.n), -7)) {
    testing::Doubles wide_x, wide_w;
    for (const std::uint16_t v : x) wide_x.push_back(static_cast<double>(widened(v)));
    for (const std::uint16_t v : w) wide_w.push_back(static_cast<double>(widened(v)));
    right = reference::matmul(wide_x, wide_w, s.m, s.n, s.k);
    args = {dev_x.get(), dev_w.get(), y.get(), s.m, s.n, s.k, nullptr, 0};
  }
  static std::vector<std::uint16_t> rounded(const Floats& values) {
    std::vector<std::uint16_t> bits;
    for (const float v : values) {
      std::uint32_t raw = 0;
      std::memcpy(&raw, &v, sizeof raw);
      bits.push_back(static_cast<std::uint16_t>(raw >> 16));
    }
    return bits;
  }
  std::vector<std::uint16_t> x, w;
  On<std::uint16_t> dev_x, dev_w;
  On<float> y;
  testing::Doubles right;
  CudaTensorMatmul args;
};

TEST_P(CudaMatmulKernels, TensorCoresAreRightForEveryRemainder) {
  for (const Shape& s : {Shape{1, 1, 8}, Shape{5, 70, 40}, Shape{130, 64, 128}, Shape{40, 9, 264}}) {
    SCOPED_TRACE(name(s, Precision::kBfloat16));
    TensorCase c(s);
    run(&CudaLibrary::matmul_tensor, c.args);
    EXPECT_LT(testing::errors_of(c.y.read(), c.right).relative, 2e-6);
  }
}

TEST_P(CudaMatmulKernels, TensorCoresDoNotSeeTheRowsAround) {
  const Shape s{70, 65, 200};
  TensorCase c(s);
  run(&CudaLibrary::matmul_tensor, c.args);
  const Floats all = c.y.read();
  for (const std::int64_t row : {0, 33, 69}) {
    CudaTensorMatmul one = c.args;
    one.x += row * s.k, one.m = 1;
    run(&CudaLibrary::matmul_tensor, one);
    EXPECT_EQ(bit_difference(c.y.read().data(), &all[static_cast<std::size_t>(row * s.n)], static_cast<std::size_t>(s.n)), "");
  }
}

TEST_P(CudaMatmulKernels, TheLibrarysProductIsRight) {
  if (testing::target().library->matmul_library == nullptr) GTEST_SKIP() << "cuBLASLt is not emulated";
  for (const Shape& s : {Shape{1, 64, 64}, Shape{130, 72, 128}, Shape{1, 64, 64}}) {
    TensorCase c(s);
    const On<float> workspace(Floats(1 << 20));
    c.args.workspace = workspace.get(), c.args.workspace_bytes = 4 << 20;
    run(&CudaLibrary::matmul_library, c.args);
    EXPECT_LT(testing::errors_of(c.y.read(), c.right).relative, 2e-6);
  }
}

}  // namespace
}  // namespace troupe::kernels
