/// @file
/// The kernels that are linked into a program, as the library's entry points: emulated or from nvcc.
#pragma once

#include "kernels/cuda_library.h"

#define TROUPE_ENTRY(name, Args) \
  extern "C" const char* troupe_cuda_##name(const troupe::kernels::Args* args, void* stream);
TROUPE_CUDA_KERNELS(TROUPE_ENTRY)
TROUPE_CUDA_CALLS(TROUPE_ENTRY)
#undef TROUPE_ENTRY

namespace troupe::kernels::testing {

/// Without calls of other libraries: these cannot be emulated.
inline CudaLibrary linked_kernels() {
  CudaLibrary l;
#define TROUPE_ENTRY(name, Args) l.name = troupe_cuda_##name;
  TROUPE_CUDA_KERNELS(TROUPE_ENTRY)
#undef TROUPE_ENTRY
  return l;
}

}  // namespace troupe::kernels::testing
