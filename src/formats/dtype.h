/// @file
/// Element types of tensors in files, and their conversion to and from float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troupe::formats {

/// The element types that safetensors names.
enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};

/// Bytes of one element.
[[nodiscard]] std::size_t element_bytes(DType dtype);
/// The safetensors spelling: "F32", "BF16", "F8_E4M3", ...
[[nodiscard]] std::string_view to_string(DType dtype);
/// The type spelt so, or nothing.
[[nodiscard]] std::optional<DType> dtype_from(std::string_view name);

/// "[2, 3]".
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

[[nodiscard]] float half_to_float(std::uint16_t bits);
/// Rounds to nearest even; overflow becomes infinity.
[[nodiscard]] std::uint16_t float_to_half(float value);
[[nodiscard]] float bfloat16_to_float(std::uint16_t bits);
/// Rounds to nearest even; NaN stays NaN.
[[nodiscard]] std::uint16_t float_to_bfloat16(float value);

/// Reads `out.size()` elements of type F32, F16, BF16 or F64 as float32. False for every other type.
[[nodiscard]] bool convert_to_float(DType dtype, std::span<const std::byte> bytes, std::span<float> out);
/// Writes `values` as F32, F16 or BF16 into `out`, which holds exactly their bytes. False for every other type.
[[nodiscard]] bool convert_from_float(DType dtype, std::span<const float> values, std::span<std::byte> out);

}  // namespace troupe::formats
