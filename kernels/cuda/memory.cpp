// Memory of the first visible device, copies, and the order of work on it.
#include <cuda_runtime_api.h>

#include "kernels/cuda_args.h"

#define TROUPE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

/// Refusals are told once: the next call must not see this one's.
const char* text_of(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(error);
}

cudaStream_t stream_of(void* handle) { return static_cast<cudaStream_t>(handle); }

}  // namespace

TROUPE_EXPORT const char* troupe_cuda_allocate(void** memory, std::size_t bytes) { return text_of(cudaMalloc(memory, bytes)); }

TROUPE_EXPORT const char* troupe_cuda_release(void* memory) { return text_of(cudaFree(memory)); }

TROUPE_EXPORT const char* troupe_cuda_memory_left(std::size_t* left, std::size_t* all) {
  return text_of(cudaMemGetInfo(left, all));
}

TROUPE_EXPORT const char* troupe_cuda_lies_on_device(const void* memory, int* yes) {
  cudaPointerAttributes attributes{};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, memory);
  *yes = error == cudaSuccess && (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) ? 1 : 0;
  return text_of(error);
}

TROUPE_EXPORT const char* troupe_cuda_open_stream(void** stream) {
  cudaStream_t opened = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&opened, cudaStreamNonBlocking);
  *stream = opened;
  return text_of(error);
}

TROUPE_EXPORT const char* troupe_cuda_copy(const troupe::kernels::CudaCopy* copy, void* stream) {
  const auto& c = *copy;
  if (c.rows == 0 || c.row_bytes == 0) return nullptr;
  if (c.rows == 1 || (c.to_stride == c.row_bytes && c.from_stride == c.row_bytes))
    return text_of(cudaMemcpyAsync(c.to, c.from, c.rows * c.row_bytes, cudaMemcpyDefault, stream_of(stream)));
  return text_of(cudaMemcpy2DAsync(c.to, c.to_stride, c.from, c.from_stride, c.row_bytes, c.rows, cudaMemcpyDefault,
                                   stream_of(stream)));
}

TROUPE_EXPORT const char* troupe_cuda_fill(void* memory, int byte, std::size_t bytes, void* stream) {
  return text_of(cudaMemsetAsync(memory, byte, bytes, stream_of(stream)));
}

TROUPE_EXPORT const char* troupe_cuda_synchronise(void* stream) { return text_of(cudaStreamSynchronize(stream_of(stream))); }
