/// @file
/// Memory of the GPU of this process: pieces that are used again, copies, and the one stream on which everything happens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/result.h"
#include "kernels/cuda_library.h"

namespace troupe::kernels {

/// The GPU as this process uses it.
struct Device {
  const CudaLibrary* library = nullptr;
  void* stream = nullptr;  ///< In order: what is enqueued later sees what was enqueued before.
};

/// The first visible device (CUDA_VISIBLE_DEVICES chooses), opened once per process and never closed; later calls return
/// the same result. Errors: those of cuda_library(); kUnavailable where CUDA finds no device, or with its own text.
[[nodiscard]] const Result<Device>& device();

/// A piece of the GPU's memory; contents unspecified. Given back when this goes, and used again: allocating costs nothing
/// once a process has seen its largest shapes. As everything runs on one stream, it may be given back while work on it is
/// still to come. Thread-safe.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Errors: those of device(); kResourceExhausted with the bytes asked for and what is left.
  [[nodiscard]] static Result<DeviceMemory> allocate(std::size_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    DeviceMemory taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~DeviceMemory();

  [[nodiscard]] void* get() const { return memory_; }
  [[nodiscard]] float* floats() const { return static_cast<float*>(memory_); }
  [[nodiscard]] bool empty() const { return memory_ == nullptr; }

 private:
  void swap(DeviceMemory& other) {
    std::swap(memory_, other.memory_);
    std::swap(held_, other.held_);
  }
  void* memory_ = nullptr;
  std::size_t held_ = 0;  ///< Bytes, as the pool counts them.
};

/// Rows of bytes, `*_stride` apart.
struct RowCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t rows = 1, row_bytes = 0;
  std::size_t to_stride = 0, from_stride = 0;
};
/// Between host and device. Blocking: until the copy is made.
[[nodiscard]] Status copy_to_device(const RowCopy& copy);
[[nodiscard]] Status copy_to_host(const RowCopy& copy);
/// Sets every byte, in the order of the stream.
[[nodiscard]] Status fill_device(void* memory, int byte, std::size_t bytes);
/// Until all that was enqueued is done. Errors: kUnavailable with CUDA's text, also of earlier kernels.
[[nodiscard]] Status wait_for_device();
/// Whether a pointer is to device memory. False without a device.
[[nodiscard]] bool lies_on_device(const void* memory);

/// What this process has moved and taken so far.
struct DeviceTraffic {
  std::uint64_t bytes_up = 0, bytes_down = 0;
  std::uint64_t allocations = 0;  ///< Calls of CUDA's allocator: those that the pool could not answer.
  std::uint64_t kernels = 0;      ///< Launched through `launch`.
  std::uint64_t bytes_held = 0;   ///< By this process now, used or kept.
};
[[nodiscard]] DeviceTraffic device_traffic();

namespace detail {
void count_kernel();
}

/// Enqueues a kernel. Errors: those of device(); kUnavailable with CUDA's text.
template <class Args>
[[nodiscard]] Status launch(const char* (*CudaLibrary::*entry)(const Args*, void*), const Args& args) {
  const Result<Device>& gpu = device();
  if (!gpu) return tl::unexpected(gpu.error());
  detail::count_kernel();
  if (const char* refused = (gpu->library->*entry)(&args, gpu->stream))
    return fail(ErrorCode::kUnavailable, std::string("the GPU refused a kernel: ") + refused);
  return {};
}

}  // namespace troupe::kernels
