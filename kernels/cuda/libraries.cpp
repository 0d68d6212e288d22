// The host half of libtroupe_cuda.so: probes of the libraries that the GPU path stands on.
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "kernels/cuda_library.h"

#define TROUPE_EXPORT extern "C" __attribute__((visibility("default")))

TROUPE_EXPORT int troupe_cuda_abi_version() { return troupe::kernels::kCudaAbiVersion; }

TROUPE_EXPORT int troupe_cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

TROUPE_EXPORT int troupe_cuda_nccl_version() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

TROUPE_EXPORT int troupe_cuda_torch_devices() { return static_cast<int>(c10::cuda::device_count()); }
