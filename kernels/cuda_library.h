/// @file
/// libtroupe_cuda.so, found and opened when a GPU kernel is first asked for. A machine without it runs everything on
/// the CPU, and can say why.
#pragma once

#include <string>

#include "base/result.h"
#include "kernels/adamw.h"
#include "kernels/cuda_args.h"
#include "kernels/delta_net.h"
#include "kernels/logprob.h"
#include "kernels/pointwise.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/swiglu.h"

/// The kernels of the library, each with its arguments: ENTRY(name, Args) is
/// `const char* troupe_cuda_NAME(const Args* args, void* stream)`. It enqueues on a cudaStream_t and returns null, or a
/// static text that says what CUDA refused. Pointers in the arguments are to device memory. Arguments that the CPU
/// kernel would refuse are the caller's to check.
#define TROUPE_CUDA_KERNELS(ENTRY)             \
  ENTRY(rmsnorm_forward, RmsNormForward)       \
  ENTRY(rmsnorm_backward, RmsNormBackward)     \
  ENTRY(rope, Rope)                            \
  ENTRY(rope_pairs, RopePairs)                 \
  ENTRY(swiglu_forward, SwigluForward)         \
  ENTRY(swiglu_backward, SwigluBackward)       \
  ENTRY(gated_unit, GatedUnit)                 \
  ENTRY(adamw_step, AdamW)                     \
  ENTRY(logprob_forward, LogprobForward)       \
  ENTRY(logprob_backward, LogprobBackward)     \
  ENTRY(sample_rows, CudaSampleRows)           \
  ENTRY(route, Router)                         \
  ENTRY(attention_forward, CudaAttention)      \
  ENTRY(attention_backward, CudaAttentionGrad) \
  ENTRY(store_in_pages, CudaPageStores)        \
  ENTRY(listed_attention, CudaListedAttention) \
  ENTRY(causal_conv, CausalConv)               \
  ENTRY(delta_rule, DeltaRule)                 \
  ENTRY(delta_rule_backward, CudaDeltaGrad)    \
  ENTRY(quantise, CudaQuantise)                \
  ENTRY(dequantise, CudaQuantise)              \
  ENTRY(matmul, CudaMatmul)                    \
  ENTRY(grouped_matmul, CudaMatmul)            \
  ENTRY(weight_gradient, WeightGradient)       \
  ENTRY(round_bfloat16, CudaRound)             \
  ENTRY(matmul_tensor, CudaTensorMatmul)       \
  ENTRY(add, CudaAdd)

/// Those that are a call of somebody else's library.
#define TROUPE_CUDA_CALLS(ENTRY) ENTRY(matmul_library, CudaTensorMatmul)

/// Memory of the first visible device, and the order of work on it: ENTRY(name, parameters) is
/// `const char* troupe_cuda_NAME parameters`, null or a static text that says what CUDA refused.
#define TROUPE_CUDA_MEMORY(ENTRY)                                \
  ENTRY(allocate, (void** memory, std::size_t bytes))            \
  ENTRY(release, (void* memory))                                 \
  ENTRY(memory_left, (std::size_t* left, std::size_t* all))      \
  ENTRY(lies_on_device, (const void* memory, int* yes))          \
  ENTRY(open_stream, (void** stream))                            \
  ENTRY(copy, (const troupe::kernels::CudaCopy* copy, void* stream)) \
  ENTRY(fill, (void* memory, int byte, std::size_t bytes, void* stream)) \
  ENTRY(synchronise, (void* stream))

namespace troupe::kernels {

/// The C entry points of libtroupe_cuda.so.
struct CudaLibrary {
#define TROUPE_ENTRY(name, Args) const char* (*name)(const Args* args, void* stream) = nullptr;
  TROUPE_CUDA_KERNELS(TROUPE_ENTRY)
  TROUPE_CUDA_CALLS(TROUPE_ENTRY)
#undef TROUPE_ENTRY
#define TROUPE_ENTRY(name, Parameters) const char*(*name) Parameters = nullptr;
  TROUPE_CUDA_MEMORY(TROUPE_ENTRY)
#undef TROUPE_ENTRY
  int (*device_count)() = nullptr;   ///< Devices CUDA can use now; 0 without a driver.
  int (*nccl_version)() = nullptr;   ///< NCCL's own number, e.g. 22809; 0 on failure.
  int (*torch_devices)() = nullptr;  ///< Devices LibTorch's CUDA half can use now.
  int (*abi_version)() = nullptr;    ///< Must equal kCudaAbiVersion.
  std::string path;
};

/// Changes with the layout of any argument struct or entry point above.
inline constexpr int kCudaAbiVersion = 3;

/// Opens a library file. Errors: kUnavailable with the loader's own text (what is missing), kCorrupt when an entry
/// point is missing or the version differs.
[[nodiscard]] Result<CudaLibrary> open_cuda_library(const std::string& path);

/// The library that the environment's TROUPE_CUDA_LIBRARY names, else the one next to the running executable; opened once
/// per process, later calls return the same result. Errors: as open_cuda_library; kNotFound where this build has none.
[[nodiscard]] const Result<CudaLibrary>& cuda_library();

}  // namespace troupe::kernels
