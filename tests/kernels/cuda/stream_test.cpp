// A kernel on a stream through libtroupe_cuda.so, as the product calls it. Needs a device and LibTorch's CUDA half.
#include <cuda_runtime_api.h>

#include "kernels/cuda_library.h"
#include "kernels/rmsnorm.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

TEST(CudaStream, RmsNormHasTheBitsOfTheCpu) {
  const auto& library = cuda_library();
  if (!library) GTEST_SKIP() << library.error().message;
  if (library->device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const testing::Floats x = testing::filled(50 * 576, 4), w = testing::filled(576, 5);
  testing::Floats y(x.size()), got(x.size());
  RmsNormForward f;
  f.x = x.data(), f.weight = w.data(), f.y = y.data(), f.rows = 50, f.cols = 576;
  rmsnorm_forward(f);
  const std::size_t bytes = x.size() * sizeof(float);
  float *dev_x = nullptr, *dev_w = nullptr;
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&dev_x), bytes), cudaSuccess);
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&dev_w), w.size() * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(dev_x, x.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(dev_w, w.data(), w.size() * sizeof(float), cudaMemcpyHostToDevice), cudaSuccess);
  f.x = f.y = dev_x, f.weight = dev_w;
  ASSERT_TRUE(rmsnorm_forward(f, Stream{stream}).has_value());
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(got.data(), dev_x, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(testing::bit_difference(got, y), "");
  cudaFree(dev_x);
  cudaFree(dev_w);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace troupe::kernels
