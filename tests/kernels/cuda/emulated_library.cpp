// The emulated kernels as a library with the entry points of libtroupe_cuda.so, for TROUPE_CUDA_LIBRARY. Device memory has
// addresses of its own: what a kernel or a list is given of the host's is refused, and so is a copy that leaves a piece.
//
// The environment may make it worse: TROUPE_EMULATED_DEVICES (1), TROUPE_EMULATED_MEMORY in bytes (4 GiB).
#include <emulator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "kernels/cuda_library.h"

#define TROUPE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using troupe::kernels::CudaCopy;

std::size_t setting(const char* name, std::size_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class Memory {
 public:
  const char* allocate(void** memory, std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    if (base_ == nullptr) return "no memory could be reserved";
    if (held_ + bytes > all_) return "out of memory";
    std::size_t begin = 0;  // the first gap that is large enough
    for (const auto& [at, size] : pieces_) {
      if (at - begin >= bytes + kGap) break;
      begin = (at + size + kGap) / kGap * kGap;
    }
    if (begin + bytes > kReserved) return "out of memory";
    pieces_[begin] = bytes;
    held_ += bytes;
    *memory = base_ + begin;
    std::memset(*memory, 0xFF, std::min(bytes, kFilled));  // NaN
    return nullptr;
  }
  const char* release(void* memory) {
    const std::scoped_lock lock(mutex_);
    const auto piece = pieces_.find(static_cast<std::size_t>(static_cast<char*>(memory) - base_));
    if (piece == pieces_.end()) return "this memory was not allocated";
    held_ -= piece->second;
    pieces_.erase(piece);
    return nullptr;
  }
  [[nodiscard]] bool holds(const void* memory) const {
    const auto* at = static_cast<const char*>(memory);
    return at >= base_ && at < base_ + kReserved;
  }
  /// Whether the bytes lie in one piece, or all in the host's memory.
  [[nodiscard]] bool whole(const void* memory, std::size_t bytes) {
    if (!holds(memory)) return true;
    const std::scoped_lock lock(mutex_);
    const auto begin = static_cast<std::size_t>(static_cast<const char*>(memory) - base_);
    auto piece = pieces_.upper_bound(begin);
    if (piece == pieces_.begin()) return false;
    --piece;
    return begin + bytes <= piece->first + piece->second;
  }
  void left(std::size_t* left, std::size_t* all) {
    const std::scoped_lock lock(mutex_);
    *left = all_ - held_;
    *all = all_;
  }

 private:
  static constexpr std::size_t kReserved = std::size_t{64} << 30, kGap = 4096, kFilled = 1 << 20;
  static constexpr std::uintptr_t kAddress = 0x2000'0000'0000;  // nothing of the host lies here
  static char* reserve() {
    void* memory = mmap(reinterpret_cast<void*>(kAddress), kReserved, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
  }
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> pieces_;  ///< Offset, bytes.
  char* base_ = reserve();
  std::size_t held_ = 0;
  const std::size_t all_ = setting("TROUPE_EMULATED_MEMORY", std::size_t{4} << 30);
};

Memory& memory_of_device() {
  static auto* const kept = new Memory;
  return *kept;
}

const char* check_copy(const CudaCopy& c) {
  Memory& device = memory_of_device();
  if (c.rows == 0) return nullptr;
  if (!device.whole(c.to, (c.rows - 1) * c.to_stride + c.row_bytes)) return "a copy to outside a piece of memory";
  if (!device.whole(c.from, (c.rows - 1) * c.from_stride + c.row_bytes)) return "a copy from outside a piece of memory";
  constexpr std::size_t kListBytes = 1 << 16;  // lists are short
  if (!device.holds(c.to) || device.holds(c.from) || c.rows > 1 || c.row_bytes > kListBytes) return nullptr;
  return emulator::check_addresses(c.from, c.row_bytes);
}

}  // namespace

TROUPE_EXPORT int troupe_cuda_abi_version() { return troupe::kernels::kCudaAbiVersion; }
TROUPE_EXPORT int troupe_cuda_device_count() { return static_cast<int>(setting("TROUPE_EMULATED_DEVICES", 1)); }
TROUPE_EXPORT int troupe_cuda_nccl_version() { return 0; }
TROUPE_EXPORT int troupe_cuda_torch_devices() { return 0; }

TROUPE_EXPORT const char* troupe_cuda_matmul_library(const troupe::kernels::CudaTensorMatmul*, void*) {
  return "cuBLASLt is not emulated";
}

TROUPE_EXPORT const char* troupe_cuda_allocate(void** memory, std::size_t bytes) {
  return memory_of_device().allocate(memory, bytes);
}
TROUPE_EXPORT const char* troupe_cuda_release(void* memory) { return memory_of_device().release(memory); }
TROUPE_EXPORT const char* troupe_cuda_memory_left(std::size_t* left, std::size_t* all) {
  memory_of_device().left(left, all);
  return nullptr;
}
TROUPE_EXPORT const char* troupe_cuda_lies_on_device(const void* memory, int* yes) {
  *yes = memory_of_device().holds(memory) ? 1 : 0;
  return nullptr;
}
TROUPE_EXPORT const char* troupe_cuda_open_stream(void** stream) {
  emulator::expect_device_addresses();
  *stream = &memory_of_device();
  return nullptr;
}
TROUPE_EXPORT const char* troupe_cuda_copy(const CudaCopy* copy, void*) {
  if (const char* refused = check_copy(*copy)) return refused;
  for (std::size_t row = 0; row < copy->rows; ++row)
    std::memcpy(static_cast<char*>(copy->to) + row * copy->to_stride,
                static_cast<const char*>(copy->from) + row * copy->from_stride, copy->row_bytes);
  return nullptr;
}
TROUPE_EXPORT const char* troupe_cuda_fill(void* memory, int byte, std::size_t bytes, void*) {
  if (!memory_of_device().holds(memory) || !memory_of_device().whole(memory, bytes)) return "not a piece of device memory";
  std::memset(memory, byte, bytes);
  return nullptr;
}
TROUPE_EXPORT const char* troupe_cuda_synchronise(void*) { return nullptr; }
