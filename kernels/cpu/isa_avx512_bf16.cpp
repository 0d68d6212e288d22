// Products of bfloat16 by AVX512-BF16; everything else is isa_avx512.cpp's.
#include "kernels/cpu/table.h"
#include "kernels/cpu/vector_avx512.h"

namespace troupe::kernels {
namespace avx512_bf16 {

using namespace avx512;

// clang-format off: each uses what the ones before it define
#include "kernels/cpu/leaf_transpose.inl"
#include "kernels/cpu/leaf_tiles.inl"
#include "kernels/cpu/leaf_bf16.inl"
#include "kernels/cpu/leaf_bf16_dot.inl"
#include "kernels/cpu/leaf_bf16_matmul.inl"
// clang-format on

}  // namespace avx512_bf16

ProductTable avx512_bf16_products() { return avx512_bf16::bf16_products(); }

}  // namespace troupe::kernels
