// Products of bfloat16 by AMX; everything else is isa_avx512.cpp's.
#include "kernels/cpu/table.h"
#include "kernels/cpu/vector_avx512.h"

namespace troupe::kernels {
namespace amx {

using namespace avx512;

// clang-format off: each uses what the ones before it define
#include "kernels/cpu/leaf_transpose.inl"
#include "kernels/cpu/leaf_bf16.inl"
#include "kernels/cpu/leaf_amx.inl"
#include "kernels/cpu/leaf_amx_squares.inl"
#include "kernels/cpu/leaf_amx_parts.inl"
// clang-format on

}  // namespace amx

ProductTable amx_products() { return amx::products(); }

}  // namespace troupe::kernels
