/// @file
/// XXH3 compiled for two instruction sets; base/hash.cpp chooses once. Same results.
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::hash_kernels {

struct Functions {
  std::uint64_t (*one_shot)(const void* bytes, std::size_t size, std::uint64_t seed);
  void* (*create)(); ///< A stream, reset.
  void (*destroy)(void* stream);
  void (*reset)(void* stream);
  void (*update)(void* stream, const void* bytes, std::size_t size);
  std::uint64_t (*digest)(const void* stream);
};
[[nodiscard]] Functions baseline();
[[nodiscard]] Functions avx2();

} // namespace troupe::hash_kernels
