/// @file
/// CUDA on the CPU, for tests: with TROUPE_CUDA_EMULATED the sources in kernels/cuda compile as plain C++, and this
/// takes the place of CUDA's headers. Threads of a block are fibers, blocks run one after the other.
///
/// A launch fails with a text (it never hangs) when: threads meet at different barriers, one ends before a barrier or
/// a warp operation the others wait at, a limit of the device (sm_90) is exceeded, or memory behind a shared array was
/// written. Shared memory begins as NaN in every block. The order in which threads and blocks run is a choice: a result
/// that differs between orders is a race.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace emulator {

using Site = std::source_location;

enum class Order { kAscending, kDescending, kShuffled };
/// In which threads and blocks run, from the next launch on. Ascending and descending: a warp runs to the next barrier
/// before another one begins. Shuffled: everybody a little, in turns.
void set_order(Order order);

/// From now on no argument of a launch may be an address of host memory, or hold one (emulated_library.cpp, where device
/// memory has addresses of its own).
void expect_device_addresses();
/// Whether a word may be an address of this process's heap, stack or data. A small number in front of padding, in which
/// half an address may have been left, is none.
inline bool may_be_host_address(std::uint64_t word) {
  return word >= 0x5500'0000'0000 && word < 0x8000'0000'0000 && (word & 0xFFFF'FFFF) > 0xFFFF;
}
/// Null, or which of the words are addresses of the host.
const char* check_addresses(const void* words, std::size_t bytes);

template <class... Arguments>
const char* only_device_addresses(Arguments... args) {
  const char* refused = nullptr;
  const auto check = [&](auto& one) {
    __builtin_clear_padding(&one);  // else what lay there before is taken for an address
    if (refused == nullptr) refused = check_addresses(&one, sizeof one);
  };
  (check(args), ...);
  return refused;
}

/// What one launch asks of the device. `dynamic_bytes`: of shared memory, besides the arrays the kernel names.
struct Launch {
  dim3 grid, block;
  std::size_t dynamic_bytes = 0;
};
/// Runs body(context) once per thread. Null, or what went wrong: valid until the next launch.
const char* run(const Launch& launch, void (*body)(void*), void* context);

void barrier(Site at);
/// The array that `key` names in this block.
void* shared_array(const void* key, std::size_t bytes);
void* dynamic_shared();
/// Every lane of the warp brings up to kLaneBytes; returns what lane 0, 1, ... brought, kLaneBytes apart.
inline constexpr std::size_t kLaneBytes = 64;
const unsigned char* exchange(unsigned mask, const void* mine, std::size_t bytes, Site at);
unsigned lane();

template <class T>
T from_lane(const unsigned char* all, unsigned lane_index) {
  T value;
  std::memcpy(&value, all + lane_index % 32 * kLaneBytes, sizeof value);
  return value;
}

template <class Array>
Array& shared(const void* key) {
  return *static_cast<Array*>(shared_array(key, sizeof(Array)));
}

/// D += A B of one warp, m16n8k16, as `mma.sync` spreads it over the lanes; each element's products in ascending k.
void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], Site at);

}  // namespace emulator

/// An array of the block. One per place in the source (and template instance), as __shared__ has it.
#define TROUPE_SHARED(type, name, extent)      \
  type(&name) extent = ::emulator::shared<type extent>([] { \
    static char key;                           \
    return static_cast<const void*>(&key);     \
  }())
#define TROUPE_DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(::emulator::dynamic_shared())

inline void __syncthreads(emulator::Site at = emulator::Site::current()) { emulator::barrier(at); }
inline void __syncwarp(unsigned mask = ~0u, emulator::Site at = emulator::Site::current()) {
  emulator::exchange(mask, nullptr, 0, at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int other, emulator::Site at = emulator::Site::current()) {
  return emulator::from_lane<T>(emulator::exchange(mask, &value, sizeof value, at),
                                emulator::lane() ^ static_cast<unsigned>(other));
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, emulator::Site at = emulator::Site::current()) {
  return emulator::from_lane<T>(emulator::exchange(mask, &value, sizeof value, at), static_cast<unsigned>(from));
}
inline unsigned __ballot_sync(unsigned mask, int yes, emulator::Site at = emulator::Site::current()) {
  const unsigned char* all = emulator::exchange(mask, &yes, sizeof yes, at);
  unsigned bits = 0;
  for (unsigned l = 0; l < 32; ++l) bits |= (emulator::from_lane<int>(all, l) != 0 ? 1u : 0u) << l;
  return bits;
}
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float2int_rn(float x) { return x == x ? static_cast<int>(std::nearbyintf(x)) : 0; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
