// The kernels as the emulator runs them: "device" memory is exact pieces of the heap.
#include <emulator.h>

#include <cstdlib>
#include <cstring>

#include "tests/kernels/cuda/entries.h"
#include "tests/kernels/cuda/target.h"

namespace troupe::kernels::testing {

namespace {

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

const Target& target() {
  static const CudaLibrary library = linked_kernels();
  static const Target emulated = {
      &library,
      "",
      [](std::size_t bytes) { return std::malloc(bytes); },
      [](void* memory) { std::free(memory); },
      copy, copy,
      nullptr};
  return emulated;
}

std::vector<Way> ways() { return {Way::kAscending, Way::kDescending, Way::kShuffled}; }
void choose(Way way) { emulator::set_order(static_cast<emulator::Order>(way)); }

}  // namespace troupe::kernels::testing
