// The kernels on the first device of this machine; everything is skipped where there is none.
#include <cuda_runtime_api.h>

#include "tests/kernels/cuda/entries.h"
#include "tests/kernels/cuda/target.h"

namespace troupe::kernels::testing {
namespace {

void check(cudaError_t error) { EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

}  // namespace

const Target& target() {
  static const Target device = [] {
    Target t;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      t.absent = "no CUDA device";
      return t;
    }
    static const CudaLibrary library = [] {
      CudaLibrary l = linked_kernels();
      l.matmul_library = troupe_cuda_matmul_library;
      return l;
    }();
    t.library = &library;
    t.allocate = [](std::size_t bytes) {
      void* memory = nullptr;
      check(cudaMalloc(&memory, bytes));
      return memory;
    };
    t.release = [](void* memory) { check(cudaFree(memory)); };
    t.write = [](void* to, const void* from, std::size_t bytes) {
      check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    };
    t.read = [](void* to, const void* from, std::size_t bytes) {
      check(cudaDeviceSynchronize());
      check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
    };
    cudaStream_t stream = nullptr;
    check(cudaStreamCreate(&stream));
    t.stream = stream;
    return t;
  }();
  return device;
}

std::vector<Way> ways() { return {Way::kDevice}; }
void choose(Way) {}

}  // namespace troupe::kernels::testing
