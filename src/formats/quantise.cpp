#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "formats/quantised.h"

namespace troupe::formats {

namespace {

constexpr float kE4m3Max = 448;
constexpr int kE4m3Exponent = 8, kE2m1Exponent = 2;  ///< Of the largest number.

std::byte to_byte(unsigned bits) { return static_cast<std::byte>(bits); }

/// The E8M0 byte of 2^(floor(log2(size)) - shift); that of 1 for 0.
unsigned group_scale(float size, int shift) {
  if (size == 0) return 127;
  return static_cast<unsigned>(std::clamp(std::ilogb(size) - shift + 127, 0, 254));
}

float largest(std::span<const float> values) {
  float most = 0;
  for (const float x : values) most = std::max(most, std::fabs(x));
  return most;
}

/// A scale per 32 values, then code(value / scale) for each.
template <class Code>
std::vector<std::byte> each_group(std::span<const float> values, int exponent, Code&& code) {
  TROUPE_CHECK(values.size() % kFp4Group == 0, "groups of 32 values");
  std::vector<std::byte> scales;
  for (std::size_t first = 0; first < values.size(); first += kFp4Group) {
    const auto group = values.subspan(first, kFp4Group);
    const unsigned scale = group_scale(largest(group), exponent);
    scales.push_back(to_byte(scale));
    const float factor = e8m0_to_float(static_cast<std::uint8_t>(scale));
    for (std::size_t i = 0; i < group.size(); ++i) code(first + i, group[i] / factor);
  }
  return scales;
}

}  // namespace

std::uint8_t float_to_e4m3(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const unsigned sign = bits >> 24 & 0x80U;
  if (std::isnan(x)) return static_cast<std::uint8_t>(sign | 0x7FU);
  const float size = std::fabs(x);
  if (size >= kE4m3Max) return static_cast<std::uint8_t>(sign | 0x7EU);
  if (size < 0x1p-6F) return static_cast<std::uint8_t>(sign | static_cast<unsigned>(std::lrintf(size * 512)));
  const std::uint32_t raw = bits & 0x7FFFFFFFU;
  return static_cast<std::uint8_t>(sign | (((raw + 0x7FFFFU + (raw >> 20 & 1U)) >> 20) - (120U << 3)));
}

std::uint8_t float_to_e2m1(float x) {
  const unsigned sign = std::bit_cast<std::uint32_t>(x) >> 28 & 8U;
  const float size = std::fabs(x);
  // Halfway cases go to the even code; NaN compares false everywhere but here.
  const unsigned code = !(size <= 5) ? 7 : size >= 3.5F ? 6 : size > 2.5F ? 5 : size >= 1.75F ? 4 : size > 1.25F ? 3 : size >= 0.75F ? 2 : size > 0.25F ? 1 : 0;
  return static_cast<std::uint8_t>(sign | code);
}

Quantised quantise_fp8(std::span<const float> values, std::int64_t out, std::int64_t in) {
  TROUPE_CHECK(static_cast<std::int64_t>(values.size()) == out * in, "a value per element");
  const std::int64_t col_blocks = fp8_blocks(in);
  std::vector<float> scales(static_cast<std::size_t>(fp8_blocks(out) * col_blocks), 0);
  const auto scale_of = [&](std::int64_t row, std::int64_t col) -> float& {
    return scales[static_cast<std::size_t>(row / kFp8Block * col_blocks + col / kFp8Block)];
  };
  for (std::int64_t row = 0; row < out; ++row)
    for (std::int64_t col = 0; col < in; col += kFp8Block) {
      const auto piece = values.subspan(static_cast<std::size_t>(row * in + col), static_cast<std::size_t>(std::min(kFp8Block, in - col)));
      scale_of(row, col) = std::max(scale_of(row, col), largest(piece));
    }
  for (float& scale : scales) scale = scale == 0 ? 1 : scale / kE4m3Max;
  Quantised result;
  result.codes.reserve(values.size());
  for (std::int64_t row = 0; row < out; ++row)
    for (std::int64_t col = 0; col < in; ++col)
      result.codes.push_back(to_byte(float_to_e4m3(values[static_cast<std::size_t>(row * in + col)] / scale_of(row, col))));
  result.scales.resize(scales.size() * sizeof(float));
  std::memcpy(result.scales.data(), scales.data(), result.scales.size());
  return result;
}

Quantised quantise_mxfp8(std::span<const float> values) {
  Quantised result;
  result.codes.resize(values.size());
  result.scales = each_group(values, kE4m3Exponent, [&](std::size_t i, float x) { result.codes[i] = to_byte(float_to_e4m3(x)); });
  return result;
}

Quantised quantise_mxfp4(std::span<const float> values) {
  Quantised result;
  result.codes.resize(values.size() / 2, std::byte{0});
  result.scales = each_group(values, kE2m1Exponent, [&](std::size_t i, float x) {
    result.codes[i / 2] |= to_byte(static_cast<unsigned>(float_to_e2m1(x)) << (i % 2 * 4));
  });
  return result;
}

}  // namespace troupe::formats
