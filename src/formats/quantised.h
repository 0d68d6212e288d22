/// @file
/// Weights that checkpoints store in 8 or 4 bits with scales beside them. Source: research/models.md 14.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "formats/safetensors.h"

namespace troupe::formats {

inline constexpr std::int64_t kFp8Block = 128;  ///< Rows and columns that share a scale.
[[nodiscard]] constexpr std::int64_t fp8_blocks(std::int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }
inline constexpr std::int64_t kFp4Group = 32;   ///< Columns that share a scale.

/// OCP FP8 E4M3 without infinities, E8M0 (2^(byte - 127)) and FP4 E2M1 (low four bits).
[[nodiscard]] float e4m3_to_float(std::uint8_t bits);
[[nodiscard]] float e8m0_to_float(std::uint8_t bits);
[[nodiscard]] float e2m1_to_float(std::uint8_t bits);

/// To nearest, ties to even; what is too large becomes the largest number, NaN stays NaN (E2M1 has none: its largest).
[[nodiscard]] std::uint8_t float_to_e4m3(float x);
[[nodiscard]] std::uint8_t float_to_e2m1(float x);

/// Codes and their scales, as a file stores them.
struct Quantised {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
};

/// What dequantise_fp8 reads, with F32 scales: the largest magnitude of a block / 448, or 1 where all are 0.
/// Shapes: values [out, in]; codes [out, in], scales [ceil(out / 128), ceil(in / 128)]. Values must be finite.
[[nodiscard]] Quantised quantise_fp8(std::span<const float> values, std::int64_t out, std::int64_t in);

/// OCP Microscaling 1.0, section 6.3: E4M3 codes, or E2M1 pairs (low nibble first), and an E8M0 scale of
/// 2^(floor(log2(largest magnitude)) - 8, or - 2) per 32 values; 1 where all are 0. `values.size()` must be a multiple of 32, values finite.
[[nodiscard]] Quantised quantise_mxfp8(std::span<const float> values);
[[nodiscard]] Quantised quantise_mxfp4(std::span<const float> values);

/// F8_E4M3 [out, in] times a scale per 128 x 128 block, F32 or F8_E8M0 [ceil(out / 128), ceil(in / 128)].
/// Errors: kInvalidArgument naming the tensor whose type or shape does not fit.
[[nodiscard]] Status dequantise_fp8(const TensorView& weight, const TensorView& scale, std::span<float> out);

/// I8 or U8 [out, in / 2], low nibble first, with a scale (F8_E8M0 or U8) per 32 columns: [out, in / 32].
[[nodiscard]] Status dequantise_fp4(const TensorView& weight, const TensorView& scale, std::span<float> out);

/// U8 blocks [E, out, in / 32, 16] with U8 scales [E, out, in / 32]. Shapes: result [E, in, out].
[[nodiscard]] Status dequantise_mxfp4(const TensorView& blocks, const TensorView& scales, std::span<float> out);

}  // namespace troupe::formats
