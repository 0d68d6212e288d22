/// @file
/// For tests that compute on "the GPU" through the product's own way: opens the emulated library, unless the environment's
/// TROUPE_CUDA_LIBRARY names a real one (tests/kernels/cuda/gpu.sh). The test's CMakeLists.txt calls troupe_emulated_cuda.
#pragma once

#include <cstdlib>

namespace troupe::kernels::testing {

/// Before anything asks for a device.
inline const bool kCudaIsThere = ::setenv("TROUPE_CUDA_LIBRARY", TROUPE_EMULATED_CUDA, 0) == 0;

}  // namespace troupe::kernels::testing
