// The kernels as the emulator runs them: "device" memory is exact pieces of the heap.
#include <emulator.h>

#include <cstdlib>
#include <cstring>

#include "tests/kernels/cuda/target.h"

#define TROUPE_ENTRY(name, Args) \
  extern "C" const char* troupe_cuda_##name(const troupe::kernels::Args* args, void* stream);
TROUPE_CUDA_KERNELS(TROUPE_ENTRY)
#undef TROUPE_ENTRY

namespace troupe::kernels::testing {

const Target& target() {
  static const CudaLibrary library = [] {
    CudaLibrary l;
#define TROUPE_ENTRY(name, Args) l.name = troupe_cuda_##name;
    TROUPE_CUDA_KERNELS(TROUPE_ENTRY)
#undef TROUPE_ENTRY
    return l;
  }();
  static const Target emulated = {
      &library,
      "",
      [](std::size_t bytes) { return std::malloc(bytes); },
      [](void* memory) { std::free(memory); },
      [](void* device, const void* host, std::size_t bytes) { std::memcpy(device, host, bytes); },
      [](void* host, const void* device, std::size_t bytes) { std::memcpy(host, device, bytes); },
      nullptr};
  return emulated;
}

std::vector<Way> ways() { return {Way::kAscending, Way::kDescending, Way::kShuffled}; }
void choose(Way way) { emulator::set_order(static_cast<emulator::Order>(way)); }

}  // namespace troupe::kernels::testing
