/// @file
/// Who computes which operation. No LibTorch: the config includes it.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/device.h"

namespace troupe::tensor {

enum class Backend : std::uint8_t {
  kCpu,    ///< Our kernel, whose bits depend on nothing but a row's own inputs.
  kAten,   ///< LibTorch's operators: no such promise; to compare with.
  kCheck,  ///< Both: the result is our kernel's, and a difference beyond rounding is an error that names the operation.
  kChunked,  ///< Recurrences: ours, in chunks: other bits than those of decoding.
  kCuda,     ///< Our kernel on the GPU (kernels/offload.h).
  kCheckCuda,  ///< On the CPU and on the GPU: the result is the CPU's, and a difference in bits is an error that names the kernel.
};

/// Where our kernels run.
[[nodiscard]] constexpr kernels::Where where_of(Backend backend) {
  return backend == Backend::kCuda        ? kernels::Where::kDevice
         : backend == Backend::kCheckCuda ? kernels::Where::kBoth
                                          : kernels::Where::kHost;
}

/// Per operation. Attention and recurrences over a cache, and attention over listed rows, are always our kernels on the CPU.
struct Backends {
  Backend matmul = Backend::kCpu;
  Backend attention = Backend::kCpu;
  Backend norm = Backend::kCpu;
  Backend activation = Backend::kCpu;
  Backend recurrence = Backend::kCpu;
  Backend experts = Backend::kCpu;
  Backend head = Backend::kCpu;
  Backend optimizer = Backend::kCpu;
  Backend sampling = Backend::kCpu;
};

/// An operation whose backend can be chosen.
struct BackendRow {
  const char* key;  ///< In `[kernels]`.
  Backend Backends::*member;
  const char* what;      ///< One sentence.
  Backend other;         ///< What there is beside kCpu and the GPU: kAten, kChunked, or kCpu: nothing.
  bool same_bits;        ///< The GPU's are the CPU's, of the gradient too.
  bool bfloat16 = true;  ///< The GPU can do it with model.dtype = "bfloat16".
};

inline constexpr std::array kBackendRows = {
    BackendRow{"matmul", &Backends::matmul, "Linear layers.", Backend::kAten, true},
    BackendRow{"attention", &Backends::attention, "Grouped-query attention of a training batch.", Backend::kAten, true, false},
    BackendRow{"norm", &Backends::norm, "RMSNorm with a weight; on the GPU that of query and key heads too.", Backend::kAten, true},
    BackendRow{"activation", &Backends::activation, "SwiGLU and its kin.", Backend::kAten, true},
    BackendRow{"recurrence", &Backends::recurrence,
               "Gated DeltaNet of a training batch: token by token, the bits of decoding, or (\"chunked\") in chunks, by matrix products. "
               "The gradient is in chunks on the CPU, and row by row on the GPU.",
               Backend::kChunked, false},
    BackendRow{"experts", &Backends::experts, "Router and experts.", Backend::kCpu, true},
    BackendRow{"head", &Backends::head, "The product with the vocabulary, log-probs, entropy, and their gradients.", Backend::kCpu, true},
    BackendRow{"optimizer", &Backends::optimizer, "AdamW.", Backend::kCpu, true},
    BackendRow{"sampling", &Backends::sampling, "Drawing tokens from logits where nothing is cut off.", Backend::kCpu, true},
};

/// The first operation that needs a GPU, or null.
[[nodiscard]] constexpr const BackendRow* first_on_cuda(const Backends& backends) {
  for (const BackendRow& row : kBackendRows)
    if (where_of(backends.*row.member) != kernels::Where::kHost) return &row;
  return nullptr;
}

} // namespace troupe::tensor
