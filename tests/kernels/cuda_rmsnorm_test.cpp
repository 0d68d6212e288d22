// The GPU kernels against the CPU's. Needs a device: labelled `gpu`, and skipped where there is none.
#include <cuda_runtime_api.h>

#include "kernels/cuda_library.h"
#include "kernels/rmsnorm.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Floats;

/// Device memory that holds a copy of `host`.
class Device {
 public:
  explicit Device(const Floats& host) : bytes_(host.size() * sizeof(float)) {
    EXPECT_EQ(cudaMalloc(&memory_, bytes_), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory_, host.data(), bytes_, cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~Device() { cudaFree(memory_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  [[nodiscard]] float* get() const { return static_cast<float*>(memory_); }
  [[nodiscard]] Floats read() const {
    Floats host(bytes_ / sizeof(float));
    EXPECT_EQ(cudaMemcpy(host.data(), memory_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

 private:
  std::size_t bytes_;
  void* memory_ = nullptr;
};

class CudaRmsNorm : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto& library = cuda_library();
    if (!library) GTEST_SKIP() << library.error().message;
    if (library->device_count() == 0) GTEST_SKIP() << "no CUDA device";
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaStream_t stream_ = nullptr;
};

TEST_F(CudaRmsNorm, AgreesWithTheCpuForwardAndBackward) {
  for (const auto& [rows, heads, cols] :
       std::vector<std::array<std::int64_t, 3>>{{1, 1, 1}, {3, 1, 100}, {64, 1, 576}, {17, 9, 64}, {200, 1, 4096}}) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(heads) + " x " + std::to_string(cols));
    const std::int64_t n = rows * heads * cols;
    const Floats x = testing::filled(n, 1), w = testing::filled(cols, 2), dy = testing::filled(n, 3);
    Floats y(x.size()), inv(static_cast<std::size_t>(rows * heads)), dx(x.size()), dw(w.size());
    const Device dev_x(x), dev_w(w), dev_dy(dy), dev_y(y), dev_inv(inv), dev_dx(dx), dev_dw(dw);
    RmsNormForward f;
    f.rows = rows;
    f.heads = heads;
    f.cols = cols;
    f.x = x.data(), f.weight = w.data(), f.y = y.data(), f.inv_rms = inv.data();
    rmsnorm_forward(f);
    f.x = dev_x.get(), f.weight = dev_w.get(), f.y = dev_y.get(), f.inv_rms = dev_inv.get();
    ASSERT_TRUE(rmsnorm_forward(f, Stream{stream_}).has_value());
    RmsNormBackward b;
    b.rows = rows;
    b.heads = heads;
    b.cols = cols;
    b.x = x.data(), b.weight = w.data(), b.inv_rms = inv.data(), b.dy = dy.data(), b.dx = dx.data(),
    b.dweight = dw.data();
    rmsnorm_backward(b);
    b.x = dev_x.get(), b.weight = dev_w.get(), b.inv_rms = dev_inv.get(), b.dy = dev_dy.get(), b.dx = dev_dx.get(),
    b.dweight = dev_dw.get();
    ASSERT_TRUE(rmsnorm_backward(b, Stream{stream_}).has_value());
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_LT(testing::errors_of(dev_y.read(), testing::widened(y)).relative, 5e-7);
    EXPECT_LT(testing::errors_of(dev_inv.read(), testing::widened(inv)).relative, 5e-7);
    EXPECT_LT(testing::errors_of(dev_dx.read(), testing::widened(dx)).relative, 2e-6);
    EXPECT_LT(testing::errors_of(dev_dw.read(), testing::widened(dw)).relative, 2e-6);
  }
}

TEST_F(CudaRmsNorm, ARowsBitsDoNotDependOnTheRowsAroundIt) {
  const Floats x = testing::filled(50 * 576, 4), w = testing::filled(576, 5), y(x.size());
  const Device dev_x(x), dev_w(w), dev_all(y), dev_one(y);
  RmsNormForward f;
  f.x = dev_x.get(), f.weight = dev_w.get(), f.y = dev_all.get(), f.rows = 50, f.cols = 576;
  ASSERT_TRUE(rmsnorm_forward(f, Stream{stream_}).has_value());
  f.x += 31 * 576, f.y = dev_one.get(), f.rows = 1;
  ASSERT_TRUE(rmsnorm_forward(f, Stream{stream_}).has_value());
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(testing::bit_difference(dev_one.read().data(), dev_all.read().data() + 31 * 576, 576), "");
}

}  // namespace
}  // namespace troupe::kernels
