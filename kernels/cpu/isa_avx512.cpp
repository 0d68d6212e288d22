// The inner functions of the CPU kernels, compiled for one instruction set. See table.h; the other is alike.
#include "kernels/cpu/table.h"
#include "kernels/cpu/vector_avx512.h"

namespace troupe::kernels {
namespace avx512 {

// clang-format off: each uses what the ones before it define
#include "kernels/cpu/leaf_math.inl"
#include "kernels/cpu/leaf_transpose.inl"
#include "kernels/cpu/leaf_tiles.inl"
#include "kernels/cpu/leaf_matmul_pieces.inl"
#include "kernels/cpu/leaf_matmul.inl"
#include "kernels/cpu/leaf_bf16.inl"
#include "kernels/cpu/leaf_bf16_fma.inl"
#include "kernels/cpu/leaf_bf16_matmul.inl"
#include "kernels/cpu/leaf_rows.inl"
#include "kernels/cpu/leaf_attention.inl"
#include "kernels/cpu/leaf_attention_grad.inl"
#include "kernels/cpu/leaf_attention_bf16.inl"
#include "kernels/cpu/leaf_attention_decode.inl"
#include "kernels/cpu/leaf_logprob.inl"
#include "kernels/cpu/leaf_sampling.inl"
#include "kernels/cpu/leaf_optim.inl"
#include "kernels/cpu/leaf_listed.inl"
#include "kernels/cpu/leaf_listed_grad.inl"
#include "kernels/cpu/leaf_conv.inl"
#include "kernels/cpu/leaf_delta.inl"
#include "kernels/cpu/leaf_delta_chunk.inl"
#include "kernels/cpu/leaf_delta_grad.inl"
#include "kernels/cpu/leaf_table.inl"
// clang-format on

}  // namespace avx512

const KernelTable& avx512_table() {
  static const KernelTable kTable = avx512::make_table(Isa::kAvx512);
  return kTable;
}

}  // namespace troupe::kernels
