/// @file
/// What every source in this folder stands on: CUDA's words, and launching. With TROUPE_CUDA_EMULATED the same sources
/// are plain C++ for the tests (tests/kernels/cuda).
#pragma once

#include <cstdint>

#ifdef TROUPE_CUDA_EMULATED
#include <emulator.h>
#else
#include <cuda_runtime.h>
/// A shared array of the block, named inside a kernel or device function: TROUPE_SHARED(float, tile, [16][65]).
#define TROUPE_SHARED(type, name, extent) __shared__ type name extent
/// The shared memory whose size the launch gives.
#define TROUPE_DYNAMIC_SHARED(type, name)    \
  extern __shared__ float4 dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(dynamic_shared)
#endif

#define TROUPE_EXPORT extern "C" __attribute__((visibility("default")))

namespace troupe::kernels::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;

/// Blocks of a grid. A zero anywhere: there is nothing to do.
struct Blocks {
  std::int64_t x = 1, y = 1, z = 1;
};

inline std::int64_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

/// Enqueues kernel(args...) on a cudaStream_t. Null, or a static text that says what was refused.
template <class... Parameters, class... Arguments>
const char* launch(void (*kernel)(Parameters...), Blocks blocks, dim3 threads, std::size_t shared_bytes, void* stream,
                   Arguments... args) {
  if (blocks.x <= 0 || blocks.y <= 0 || blocks.z <= 0) return nullptr;
  if (blocks.x > 2147483647 || blocks.y > 65535 || blocks.z > 65535) return "more blocks than a grid can have";
  const dim3 grid{static_cast<unsigned>(blocks.x), static_cast<unsigned>(blocks.y), static_cast<unsigned>(blocks.z)};
#ifdef TROUPE_CUDA_EMULATED
  static_cast<void>(stream);
  if (const char* refused = emulator::only_device_addresses(args...)) return refused;
  auto body = [&] { kernel(args...); };
  return emulator::run({grid, threads, shared_bytes}, [](void* f) { (*static_cast<decltype(body)*>(f))(); }, &body);
#else
  if (shared_bytes > 48 * 1024) {  // more has to be asked for
    const cudaError_t allowed =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (allowed != cudaSuccess) return cudaGetErrorString(allowed);
  }
  kernel<<<grid, threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(args...);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
#endif
}

}  // namespace troupe::kernels::cuda
