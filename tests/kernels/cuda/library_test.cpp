// The library through the ordinary entry points, as the product calls it on a device.
#include "kernels/rmsnorm.h"
#include "tests/kernels/cuda/target.h"

namespace troupe::kernels {
namespace {

class CudaOnAStream : public testing::CudaKernels {};
TROUPE_ON_ALL_WAYS(CudaOnAStream);

TEST_P(CudaOnAStream, RmsNormIsTheCpus) {
  const testing::Floats x = testing::filled(50 * 576, 4), w = testing::filled(576, 5);
  testing::Floats y(x.size());
  const testing::On<float> dev_x(x), dev_w(w), dev_y(y);
  RmsNormForward f;
  f.x = x.data(), f.weight = w.data(), f.y = y.data(), f.rows = 50, f.cols = 576;
  rmsnorm_forward(f);
  f.x = dev_x.get(), f.weight = dev_w.get(), f.y = dev_y.get();
  ASSERT_TRUE(rmsnorm_forward(f, Stream{testing::target().stream}).has_value());
  EXPECT_EQ(testing::bit_difference(dev_y.read(), y), "");
}

}  // namespace
}  // namespace troupe::kernels
