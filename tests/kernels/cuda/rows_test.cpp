// CUDA kernels that go over rows: the bits of the CPU's.
#include "kernels/norms.h"
#include "tests/kernels/cuda/target.h"

namespace troupe::kernels {
namespace {

using testing::Floats;
using testing::On;
using testing::bit_difference;

class CudaRows : public testing::CudaKernels {};
TROUPE_ON_ALL_WAYS(CudaRows);

using Sizes = std::vector<std::array<std::int64_t, 3>>;

TEST_P(CudaRows, RmsNormHasTheBitsOfTheCpu) {
  for (const auto& [rows, heads, cols] : Sizes{{1, 1, 1}, {3, 1, 100}, {9, 2, 64}, {17, 9, 33}, {5, 1, 576}, {300, 1, 70}, {2200, 1, 3}}) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(heads) + " x " + std::to_string(cols));
    const std::int64_t n = rows * heads * cols;
    const Floats x = testing::filled(n, 1), w = testing::filled(cols, 2), dy = testing::filled(n, 3);
    Floats y(x.size()), inv(static_cast<std::size_t>(rows * heads)), dx(x.size()), dw(w.size());
    const On<float> dev_x(x), dev_w(w), dev_dy(dy), dev_y(y), dev_inv(inv), dev_dx(dx), dev_dw(dw);
    RmsNormForward f;
    f.rows = rows, f.heads = heads, f.cols = cols;
    f.x = x.data(), f.weight = w.data(), f.y = y.data(), f.inv_rms = inv.data();
    rmsnorm_forward(f);
    f.x = dev_x.get(), f.weight = dev_w.get(), f.y = dev_y.get(), f.inv_rms = dev_inv.get();
    run(&CudaLibrary::rmsnorm_forward, f);
    RmsNormBackward b;
    b.rows = rows, b.heads = heads, b.cols = cols;
    b.x = x.data(), b.weight = w.data(), b.inv_rms = inv.data(), b.dy = dy.data(), b.dx = dx.data(), b.dweight = dw.data();
    rmsnorm_backward(b);
    b.x = dev_x.get(), b.weight = dev_w.get(), b.inv_rms = dev_inv.get(), b.dy = dev_dy.get(), b.dx = dev_dx.get(),
    b.dweight = dev_dw.get();
    run(&CudaLibrary::rmsnorm_backward, b);
    EXPECT_EQ(bit_difference(dev_y.read(), y), "");
    EXPECT_EQ(bit_difference(dev_inv.read(), inv), "");
    EXPECT_EQ(bit_difference(dev_dx.read(), dx), "");
    EXPECT_EQ(bit_difference(dev_dw.read(), dw), "");
    b.dx = dev_dy.get();  // over dy
    run(&CudaLibrary::rmsnorm_backward, b);
    EXPECT_EQ(bit_difference(dev_dy.read(), dx), "");
    EXPECT_EQ(bit_difference(dev_dw.read(), dw), "");
  }
}

TEST_P(CudaRows, RmsNormOfHeadsInsideAWiderRowInPlace) {
  Floats x = testing::filled(7 * 100, 4);
  const Floats w = testing::filled(16, 5);
  const On<float> dev_x(x), dev_w(w);
  RmsNormForward f;
  f.rows = 7, f.heads = 3, f.cols = 16, f.x_stride = f.y_stride = 100;
  f.x = f.y = x.data() + 20, f.weight = w.data();
  rmsnorm_forward(f);
  f.x = f.y = dev_x.get() + 20, f.weight = dev_w.get();
  run(&CudaLibrary::rmsnorm_forward, f);
  EXPECT_EQ(bit_difference(dev_x.read(), x), "");
}

TEST_P(CudaRows, RopeHasTheBitsOfTheCpuAndTurnsBack) {
  for (const auto& [rows, head_dim, rotary] : Sizes{{1, 2, 2}, {5, 64, 64}, {33, 64, 16}, {3, 40, 36}}) {
    for (const bool inverse : {false, true}) {
      Floats x = testing::filled(rows * (3 * head_dim + 5), 6);
      const Floats c = testing::filled(rows * rotary / 2, 7), s = testing::filled(rows * rotary / 2, 8);
      const On<float> dev_x(x), dev_c(c), dev_s(s);
      Rope a{x.data(), c.data(), s.data(), rows, 3, head_dim, 3 * head_dim + 5, rotary, inverse};
      rope(a);
      a.x = dev_x.get(), a.cos = dev_c.get(), a.sin = dev_s.get();
      run(&CudaLibrary::rope, a);
      EXPECT_EQ(bit_difference(dev_x.read(), x), "");
      Floats z = testing::filled(rows * 3 * head_dim, 9);
      const On<float> dev_z(z);
      RopePairs p{z.data(), c.data(), s.data(), rows, 3, head_dim, rotary / 2, inverse};
      rope_pairs(p);
      p.x = dev_z.get(), p.cos = dev_c.get(), p.sin = dev_s.get();
      run(&CudaLibrary::rope_pairs, p);
      EXPECT_EQ(bit_difference(dev_z.read(), z), "");
    }
  }
}

TEST_P(CudaRows, SumsInPlaceHaveTheBitsOfTheCpu) {
  for (const std::int64_t n : {1, 255, 256, 1000}) {
    const Floats x = testing::filled(n, 1);
    Floats y = testing::filled(n, 2);
    const On<float> dev_x(x), dev_y(y);
    add(x.data(), y.data(), n);
    run(&CudaLibrary::add, CudaAdd{dev_x.get(), dev_y.get(), n});
    EXPECT_EQ(bit_difference(dev_y.read(), y), "");
  }
}

TEST_P(CudaRows, SwigluHasTheBitsOfTheCpu) {
  for (const std::int64_t cols : {1, 17, 256, 300}) {
    Floats fused = testing::filled(5 * 2 * cols, 10, 40);  // far enough for exp to underflow
    fused[0] = -200;
    const Floats dy = testing::filled(5 * cols, 11);
    Floats y(dy.size()), grad(fused.size());
    const On<float> dev_fused(fused), dev_dy(dy), dev_y(y), dev_grad(grad);
    swiglu_forward({fused.data(), fused.data() + cols, y.data(), 5, cols, 2 * cols, 0});
    run(&CudaLibrary::swiglu_forward, SwigluForward{dev_fused.get(), dev_fused.get() + cols, dev_y.get(), 5, cols, 2 * cols, 0});
    EXPECT_EQ(bit_difference(dev_y.read(), y), "");
    swiglu_backward({fused.data(), fused.data() + cols, dy.data(), grad.data(), grad.data() + cols, 5, cols, 2 * cols, 0, 2 * cols});
    run(&CudaLibrary::swiglu_backward, SwigluBackward{dev_fused.get(), dev_fused.get() + cols, dev_dy.get(), dev_grad.get(),
                                                      dev_grad.get() + cols, 5, cols, 2 * cols, 0, 2 * cols});
    EXPECT_EQ(bit_difference(dev_grad.read(), grad), "");
    for (const GatedUnit& unit : {GatedUnit{}, GatedUnit{nullptr, nullptr, 0, 0, 7, 1.702F, 1}}) {
      GatedUnit a = unit;
      a.rows = 5, a.cols = cols, a.gate_up = fused.data(), a.y = y.data();
      gated_unit(a);
      a.gate_up = dev_fused.get(), a.y = dev_y.get();
      run(&CudaLibrary::gated_unit, a);
      EXPECT_EQ(bit_difference(dev_y.read(), y), "");
    }
  }
}

TEST_P(CudaRows, AdamWHasTheBitsOfTheCpu) {
  constexpr std::int64_t kN = 1000;
  Floats p = testing::filled(kN, 12), m = testing::filled(kN, 13), v = testing::filled(kN, 14);
  const Floats g = testing::filled(kN, 15);
  for (float& x : v) x = std::abs(x);
  const On<float> dev_p(p), dev_g(g), dev_m(m), dev_v(v);
  for (const std::int64_t step : {1, 2, 1000}) {
    AdamW a;
    a.param = p.data(), a.grad = g.data(), a.m = m.data(), a.v = v.data(), a.n = kN;
    a.lr = 1e-3, a.weight_decay = 0.1, a.step = step, a.grad_scale = 0.37F;
    adamw_step(a);
    a.param = dev_p.get(), a.grad = dev_g.get(), a.m = dev_m.get(), a.v = dev_v.get();
    run(&CudaLibrary::adamw_step, a);
    EXPECT_EQ(bit_difference(dev_p.read(), p), "");
    EXPECT_EQ(bit_difference(dev_m.read(), m), "");
    EXPECT_EQ(bit_difference(dev_v.read(), v), "");
  }
}

TEST_P(CudaRows, NothingIsNoLaunch) {
  RmsNormForward f;
  f.cols = 8;
  run(&CudaLibrary::rmsnorm_forward, f);
  run(&CudaLibrary::adamw_step, AdamW{});
  run(&CudaLibrary::swiglu_forward, SwigluForward{});
}

}  // namespace
}  // namespace troupe::kernels
