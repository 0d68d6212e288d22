// XXH3 for the instruction set that the including file is compiled for.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/hash_kernels.h"

namespace troupe::hash_kernels {
namespace {

Functions functions() {
  return {[](const void* bytes, std::size_t size, std::uint64_t seed) -> std::uint64_t { return XXH3_64bits_withSeed(bytes, size, seed); },
          []() -> void* {
            XXH3_state_t* state = XXH3_createState();
            XXH3_64bits_reset(state);
            return state;
          },
          [](void* state) { XXH3_freeState(static_cast<XXH3_state_t*>(state)); },
          [](void* state) { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state)); },
          [](void* state, const void* bytes, std::size_t size) { XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes, size); },
          [](const void* state) -> std::uint64_t { return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state)); }};
}

} // namespace
} // namespace troupe::hash_kernels
