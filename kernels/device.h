/// @file
/// What a kernel needs to know about where it runs. Plain data: no Torch, no CUDA headers.
#pragma once

namespace troupe::kernels {

/// A CUDA stream (`cudaStream_t` behind the pointer), or the calling thread when null.
struct Stream {
  void* handle = nullptr;
};

}  // namespace troupe::kernels
