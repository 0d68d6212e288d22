/// @file
/// What a kernel needs to know about where it runs. Plain data: no Torch, no CUDA headers.
#pragma once

#include <cstdint>

namespace troupe::kernels {

/// A CUDA stream (`cudaStream_t` behind the pointer), or the calling thread when null.
struct Stream {
  void* handle = nullptr;
};

/// Where an operation's kernels run (offload.h).
enum class Where : std::uint8_t {
  kHost,    ///< On the CPU.
  kDevice,  ///< On the GPU; what lies in host memory travels.
  kBoth,    ///< On both: results are the CPU's, and a difference is an error.
};

}  // namespace troupe::kernels
