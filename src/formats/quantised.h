/// @file
/// Weights that checkpoints store in 8 or 4 bits with scales beside them. Source: research/models.md 14.
#pragma once

#include <span>

#include "base/result.h"
#include "formats/safetensors.h"

namespace troupe::formats {

inline constexpr std::int64_t kFp8Block = 128;  ///< Rows and columns that share a scale.
inline constexpr std::int64_t kFp4Group = 32;   ///< Columns that share a scale.

/// OCP FP8 E4M3 without infinities, E8M0 (2^(byte - 127)) and FP4 E2M1 (low four bits).
[[nodiscard]] float e4m3_to_float(std::uint8_t bits);
[[nodiscard]] float e8m0_to_float(std::uint8_t bits);
[[nodiscard]] float e2m1_to_float(std::uint8_t bits);

/// F8_E4M3 [out, in] times a scale per 128 x 128 block, F32 or F8_E8M0 [ceil(out / 128), ceil(in / 128)].
/// Errors: kInvalidArgument naming the tensor whose type or shape does not fit.
[[nodiscard]] Status dequantise_fp8(const TensorView& weight, const TensorView& scale, std::span<float> out);

/// I8 or U8 [out, in / 2], low nibble first, with a scale (F8_E8M0 or U8) per 32 columns: [out, in / 32].
[[nodiscard]] Status dequantise_fp4(const TensorView& weight, const TensorView& scale, std::span<float> out);

/// U8 blocks [E, out, in / 32, 16] with U8 scales [E, out, in / 32]. Shapes: result [E, in, out].
[[nodiscard]] Status dequantise_mxfp4(const TensorView& blocks, const TensorView& scales, std::span<float> out);

}  // namespace troupe::formats
