#include "formats/quantised.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace troupe::formats {

namespace {

std::uint8_t byte_at(const TensorView& tensor, std::int64_t i) {
  return std::to_integer<std::uint8_t>(tensor.bytes[static_cast<std::size_t>(i)]);
}

bool is_byte(DType dtype) { return dtype == DType::kU8 || dtype == DType::kI8; }

Status wrong(const TensorView& tensor, const std::string& wanted) {
  return fail(ErrorCode::kInvalidArgument, "the tensor '" + tensor.name + "' is " + std::string(to_string(tensor.dtype)) + " " +
                                               shape_text(tensor.shape) + ", needed is " + wanted);
}

}  // namespace

float e4m3_to_float(std::uint8_t bits) {
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

float e8m0_to_float(std::uint8_t bits) {
  if (bits == 0xFF) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0F, static_cast<int>(bits) - 127);
}

float e2m1_to_float(std::uint8_t bits) {
  constexpr std::array<float, 8> kMagnitudes = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  const float magnitude = kMagnitudes[bits & 7U];
  return (bits & 8U) != 0 ? -magnitude : magnitude;
}

Status dequantise_fp8(const TensorView& weight, const TensorView& scale, std::span<float> out) {
  if (weight.dtype != DType::kF8E4M3 || weight.shape.size() != 2 ||
      weight.elements() != static_cast<std::int64_t>(out.size()))
    return wrong(weight, "F8_E4M3 with " + std::to_string(out.size()) + " elements in two dimensions");
  const std::int64_t cols = weight.shape[1];
  const std::int64_t col_blocks = fp8_blocks(cols);
  const std::vector<std::int64_t> blocks{fp8_blocks(weight.shape[0]), col_blocks};
  const bool is_float = scale.dtype == DType::kF32;
  if ((!is_float && scale.dtype != DType::kF8E8M0 && scale.dtype != DType::kU8) ||
      scale.shape != blocks)
    return wrong(scale, "F32 or F8_E8M0 " + shape_text(blocks) + ", a scale per block of 128 x 128");
  std::array<float, 256> table{};
  for (int i = 0; i < 256; ++i) table[static_cast<std::size_t>(i)] = e4m3_to_float(static_cast<std::uint8_t>(i));
  for (std::int64_t row = 0; row < weight.shape[0]; ++row)
    for (std::int64_t col = 0; col < cols; ++col) {
      const std::int64_t block = row / kFp8Block * col_blocks + col / kFp8Block;
      float factor = 0;
      if (is_float)
        std::memcpy(&factor, scale.bytes.data() + 4 * block, sizeof factor);
      else
        factor = e8m0_to_float(byte_at(scale, block));
      const std::int64_t i = row * cols + col;
      out[static_cast<std::size_t>(i)] = table[byte_at(weight, i)] * factor;
    }
  return {};
}

Status dequantise_fp4(const TensorView& weight, const TensorView& scale, std::span<float> out) {
  if (!is_byte(weight.dtype) || weight.shape.size() != 2 ||
      2 * weight.elements() != static_cast<std::int64_t>(out.size()) || 2 * weight.shape[1] % kFp4Group != 0)
    return wrong(weight, "I8 with " + std::to_string(out.size() / 2) + " bytes, two numbers each");
  const std::vector<std::int64_t> groups{weight.shape[0], 2 * weight.shape[1] / kFp4Group};
  if ((scale.dtype != DType::kF8E8M0 && scale.dtype != DType::kU8) || scale.shape != groups)
    return wrong(scale, "F8_E8M0 " + shape_text(groups) + ", a scale per 32 columns");
  for (std::int64_t i = 0; i < weight.elements(); ++i) {
    const std::uint8_t pair = byte_at(weight, i);
    const float factor = e8m0_to_float(byte_at(scale, 2 * i / kFp4Group));
    out[static_cast<std::size_t>(2 * i)] = e2m1_to_float(pair & 15U) * factor;
    out[static_cast<std::size_t>(2 * i + 1)] = e2m1_to_float(static_cast<std::uint8_t>(pair >> 4U)) * factor;
  }
  return {};
}

Status dequantise_mxfp4(const TensorView& blocks, const TensorView& scales, std::span<float> out) {
  constexpr std::int64_t kBytes = kFp4Group / 2;
  if (!is_byte(blocks.dtype) || blocks.shape.size() != 4 || blocks.shape[3] != kBytes ||
      2 * blocks.elements() != static_cast<std::int64_t>(out.size()))
    return wrong(blocks, "U8 [experts, out, in / 32, 16] with " + std::to_string(out.size() / 2) + " bytes");
  if (!is_byte(scales.dtype) ||
      scales.shape != std::vector<std::int64_t>{blocks.shape[0], blocks.shape[1], blocks.shape[2]})
    return wrong(scales, "U8 with a scale per group of 32");
  const std::int64_t rows = blocks.shape[1];
  const std::int64_t cols = blocks.shape[2] * kFp4Group;
  for (std::int64_t e = 0; e < blocks.shape[0]; ++e)
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t col = 0; col < cols; ++col) {
        const std::int64_t i = (e * rows + row) * cols + col;
        const std::uint8_t pair = byte_at(blocks, i / 2);
        const auto code = static_cast<std::uint8_t>(i % 2 == 0 ? pair & 15U : pair >> 4U);
        out[static_cast<std::size_t>((e * cols + col) * rows + row)] =
            e2m1_to_float(code) * e8m0_to_float(byte_at(scales, i / kFp4Group));
      }
  return {};
}

}  // namespace troupe::formats
