/// @file
/// Who computes which operation. No LibTorch: the config includes it.
#pragma once

#include <cstdint>

namespace troupe::tensor {

enum class Backend : std::uint8_t {
  kCpu,    ///< Our kernel, whose bits depend on nothing but a row's own inputs.
  kAten,   ///< LibTorch's operators: no such promise; to compare with.
  kCheck,  ///< Both: the result is our kernel's, and a difference beyond rounding is an error that names the operation.
  kChunked,  ///< Recurrences: ours, in chunks: other bits than those of decoding.
};

/// Per operation. Experts, recurrences over a cache, attention over a cache or listed rows, and the head are always our kernels.
struct Backends {
  Backend matmul = Backend::kCpu;      ///< Linear layers.
  Backend attention = Backend::kCpu;   ///< Grouped-query attention over packed rows (training).
  Backend norm = Backend::kCpu;        ///< RMSNorm.
  Backend activation = Backend::kCpu;  ///< SwiGLU.
  Backend recurrence = Backend::kCpu;  ///< Gated DeltaNet over packed rows (training): kCpu, kChunked or both compared.
};

} // namespace troupe::tensor
