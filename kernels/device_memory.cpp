#include "kernels/device_memory.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::kernels {
namespace {

constexpr std::size_t kLeastBytes = 512;

/// Pieces of one of eight sizes per power of two: at most an eighth is unused.
std::size_t size_class(std::size_t bytes) {
  const std::size_t wanted = std::max(bytes, kLeastBytes);
  const std::size_t step = std::bit_floor(wanted) / 8;
  return (wanted + step - 1) / step * step;
}

/// Everything a process knows of its device's memory. Never destroyed: CUDA is gone before its destructor would run.
struct Pool {
  std::mutex mutex;
  std::map<std::size_t, std::vector<void*>> unused;  ///< By size.
  DeviceTraffic traffic;
};
Pool& pool() {
  static auto* const kept = new Pool;
  return *kept;
}

Status refused(const char* what, const char* text) {
  if (text == nullptr) return {};
  return fail(ErrorCode::kUnavailable, std::string("the GPU could not ") + what + ": " + text);
}

std::string mebibytes(std::size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

/// Gives unused pieces back to CUDA; the pool is locked.
void drop_unused(Pool& p, const Device& gpu) {
  for (auto& [size, pieces] : p.unused) {
    for (void* piece : pieces) {
      static_cast<void>(gpu.library->release(piece));
      p.traffic.bytes_held -= size;
    }
  }
  p.unused.clear();
}

auto no_room(const Pool& p, const Device& gpu, std::size_t bytes, const char* text) {
  std::size_t left = 0, all = 0;
  static_cast<void>(gpu.library->memory_left(&left, &all));
  return fail(ErrorCode::kResourceExhausted,
              "the GPU has no room for " + std::to_string(bytes) + " bytes (" + mebibytes(bytes) + "): " + mebibytes(left) +
                  " of " + mebibytes(all) + " are left, this process holds " + mebibytes(p.traffic.bytes_held) + " (" + text +
                  "); lower trainer.micro_batch_tokens or rollout.chunk_tokens, or set rows of [kernels] to \"cpu\"");
}

Status copied(const RowCopy& c, std::uint64_t DeviceTraffic::*direction) {
  if (c.rows == 0 || c.row_bytes == 0) return {};
  const Result<Device>& gpu = device();
  if (!gpu) return tl::unexpected(gpu.error());
  const CudaCopy args{c.to, c.from, c.rows, c.row_bytes, c.to_stride == 0 ? c.row_bytes : c.to_stride,
                      c.from_stride == 0 ? c.row_bytes : c.from_stride};
  TROUPE_TRY_STATUS(refused("copy", gpu->library->copy(&args, gpu->stream)));
  const std::scoped_lock lock(pool().mutex);
  pool().traffic.*direction += c.rows * c.row_bytes;
  return {};
}

}  // namespace

const Result<Device>& device() {
  static const Result<Device> opened = []() -> Result<Device> {
    const Result<CudaLibrary>& library = cuda_library();
    if (!library) return tl::unexpected(library.error());
    if (library->device_count() == 0)
      return fail(ErrorCode::kUnavailable, "CUDA finds no device that it can use (nvidia-smi and CUDA_VISIBLE_DEVICES say more)");
    Device gpu{&*library, nullptr};
    TROUPE_TRY_STATUS(refused("open a stream", library->open_stream(&gpu.stream)));
    return gpu;
  }();
  return opened;
}

Result<DeviceMemory> DeviceMemory::allocate(std::size_t bytes) {
  const Result<Device>& gpu = device();
  if (!gpu) return tl::unexpected(gpu.error());
  Pool& p = pool();
  const std::scoped_lock lock(p.mutex);
  DeviceMemory piece;
  piece.held_ = size_class(bytes);
  if (auto kept = p.unused.find(piece.held_); kept != p.unused.end() && !kept->second.empty()) {
    piece.memory_ = kept->second.back();
    kept->second.pop_back();
    return piece;
  }
  ++p.traffic.allocations;
  const char* text = gpu->library->allocate(&piece.memory_, piece.held_);
  if (text != nullptr) {  // what is kept of other sizes may be enough
    TROUPE_TRY_STATUS(refused("finish its work", gpu->library->synchronise(gpu->stream)));
    drop_unused(p, *gpu);
    text = gpu->library->allocate(&piece.memory_, piece.held_);
  }
  if (text != nullptr) {
    piece.memory_ = nullptr;
    return no_room(p, *gpu, bytes, text);
  }
  p.traffic.bytes_held += piece.held_;
  return piece;
}

DeviceMemory::~DeviceMemory() {
  if (memory_ == nullptr) return;
  const std::scoped_lock lock(pool().mutex);
  pool().unused[held_].push_back(memory_);
}

Status copy_to_device(const RowCopy& copy) { return copied(copy, &DeviceTraffic::bytes_up); }

Status copy_to_host(const RowCopy& copy) {
  TROUPE_TRY_STATUS(copied(copy, &DeviceTraffic::bytes_down));
  return wait_for_device();
}

Status fill_device(void* memory, int byte, std::size_t bytes) {
  const Result<Device>& gpu = device();
  if (!gpu) return tl::unexpected(gpu.error());
  return refused("fill memory", gpu->library->fill(memory, byte, bytes, gpu->stream));
}

Status wait_for_device() {
  const Result<Device>& gpu = device();
  if (!gpu) return tl::unexpected(gpu.error());
  return refused("finish its work", gpu->library->synchronise(gpu->stream));
}

bool lies_on_device(const void* memory) {
  const Result<Device>& gpu = device();
  int yes = 0;
  return gpu && gpu->library->lies_on_device(memory, &yes) == nullptr && yes != 0;
}

DeviceTraffic device_traffic() {
  const std::scoped_lock lock(pool().mutex);
  return pool().traffic;
}

void detail::count_kernel() {
  const std::scoped_lock lock(pool().mutex);
  ++pool().traffic.kernels;
}

}  // namespace troupe::kernels
