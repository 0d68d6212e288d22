#include "formats/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

namespace troupe::formats {

namespace {

struct Row {
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<Row, 16> kRows = {{{"BOOL", 1},
                                        {"U8", 1},
                                        {"I8", 1},
                                        {"F8_E4M3", 1},
                                        {"F8_E5M2", 1},
                                        {"F8_E8M0", 1},
                                        {"I16", 2},
                                        {"U16", 2},
                                        {"F16", 2},
                                        {"BF16", 2},
                                        {"I32", 4},
                                        {"U32", 4},
                                        {"F32", 4},
                                        {"I64", 8},
                                        {"U64", 8},
                                        {"F64", 8}}};

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace

std::size_t element_bytes(DType dtype) { return kRows[static_cast<std::size_t>(dtype)].bytes; }

std::string_view to_string(DType dtype) { return kRows[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> dtype_from(std::string_view name) {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16;
  const std::uint32_t exponent = (bits >> 10) & 31U;
  const std::uint32_t mantissa = bits & 1023U;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds past 65504
  if (magnitude < 0x38800000U) {  // subnormal: the sum with 0.5 leaves the rounded mantissa in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign |
                                      (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F)));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - (112U << 23)) >> 13));
}

float bfloat16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

bool convert_to_float(DType dtype, std::span<const std::byte> bytes, std::span<float> out) {
  if (bytes.size() != out.size() * element_bytes(dtype)) return false;
  const std::byte* in = bytes.data();
  switch (dtype) {
    case DType::kF32:
      if (!out.empty()) std::memcpy(out.data(), in, bytes.size());
      return true;
    case DType::kF16:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = half_to_float(load<std::uint16_t>(in + 2 * i));
      return true;
    case DType::kBF16:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = bfloat16_to_float(load<std::uint16_t>(in + 2 * i));
      return true;
    case DType::kF64:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(load<double>(in + 8 * i));
      return true;
    default:
      return false;
  }
}

bool convert_from_float(DType dtype, std::span<const float> values, std::span<std::byte> out) {
  if (out.size() != values.size() * element_bytes(dtype)) return false;
  if (dtype == DType::kF32) {
    if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
    return true;
  }
  if (dtype != DType::kF16 && dtype != DType::kBF16) return false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits = dtype == DType::kF16 ? float_to_half(values[i]) : float_to_bfloat16(values[i]);
    std::memcpy(out.data() + 2 * i, &bits, sizeof bits);
  }
  return true;
}

}  // namespace troupe::formats
