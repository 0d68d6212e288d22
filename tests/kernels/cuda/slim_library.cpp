// The entry points of libtroupe_cuda.so that are not kernels, without what they probe elsewhere.
#include <cuda_runtime_api.h>

#include "kernels/cuda_library.h"

#define TROUPE_EXPORT extern "C" __attribute__((visibility("default")))

TROUPE_EXPORT int troupe_cuda_abi_version() { return troupe::kernels::kCudaAbiVersion; }
TROUPE_EXPORT int troupe_cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
TROUPE_EXPORT int troupe_cuda_nccl_version() { return 0; }
TROUPE_EXPORT int troupe_cuda_torch_devices() { return 0; }
