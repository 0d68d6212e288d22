/// @file
/// libtroupe_cuda.so, found and opened when a GPU kernel is first asked for. A machine without it runs everything on
/// the CPU, and can say why.
#pragma once

#include <string>

#include "base/result.h"
#include "kernels/rmsnorm.h"

namespace troupe::kernels {

/// The C entry points of libtroupe_cuda.so. An entry returns null, or a static text that says what CUDA refused.
struct CudaLibrary {
  const char* (*rmsnorm_forward)(const RmsNormForward* args, void* stream) = nullptr;
  const char* (*rmsnorm_backward)(const RmsNormBackward* args, void* stream) = nullptr;
  int (*device_count)() = nullptr;   ///< Devices CUDA can use now; 0 without a driver.
  int (*nccl_version)() = nullptr;   ///< NCCL's own number, e.g. 22809; 0 on failure.
  int (*torch_devices)() = nullptr;  ///< Devices LibTorch's CUDA half can use now.
  int (*abi_version)() = nullptr;    ///< Must equal kCudaAbiVersion.
  std::string path;
};

/// Changes with the layout of any argument struct or entry point above.
inline constexpr int kCudaAbiVersion = 1;

/// Opens a library file. Errors: kUnavailable with the loader's own text (what is missing), kCorrupt when an entry
/// point is missing or the version differs.
[[nodiscard]] Result<CudaLibrary> open_cuda_library(const std::string& path);

/// The library next to the running executable, opened once per process; later calls return the same result.
/// Errors: as open_cuda_library; kNotFound where this build has none.
[[nodiscard]] const Result<CudaLibrary>& cuda_library();

}  // namespace troupe::kernels
