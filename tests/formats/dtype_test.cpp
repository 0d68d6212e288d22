#include "formats/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace troupe::formats {
namespace {

TEST(DType, EveryHalfSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value)))) << bits;
      continue;
    }
    ASSERT_EQ(float_to_half(value), bits);
  }
}

TEST(DType, HalfRoundsToNearestEven) {
  EXPECT_EQ(float_to_half(1.0F + 0x1p-11F), 0x3C00);  // a tie goes to the even mantissa
  EXPECT_EQ(float_to_half(1.0F + 3 * 0x1p-11F), 0x3C02);
  EXPECT_EQ(float_to_half(1.0F + 0x1p-11F + 0x1p-20F), 0x3C01);
  EXPECT_EQ(float_to_half(65519.0F), 0x7BFF);
  EXPECT_EQ(float_to_half(65520.0F), 0x7C00);
  EXPECT_EQ(float_to_half(0x1p-25F), 0x0000);
  EXPECT_EQ(float_to_half(std::nextafter(0x1p-25F, 1.0F)), 0x0001);
  EXPECT_EQ(float_to_half(-std::numeric_limits<float>::infinity()), 0xFC00);
}

TEST(DType, Bfloat16RoundsToNearestEvenAndKeepsNan) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bfloat16_to_float(static_cast<std::uint16_t>(bits));
    if (!std::isnan(value)) {
      ASSERT_EQ(float_to_bfloat16(value), bits);
    }
  }
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x3F808000U)), 0x3F80);
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(std::bit_cast<float>(0x7F800001U)))));
}

TEST(DType, NamesAndSizesAgree) {
  for (const char* name : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "I16", "U16", "F16", "BF16", "I32",
                           "U32", "F32", "I64", "U64", "F64"}) {
    const auto dtype = dtype_from(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(to_string(*dtype), name);
  }
  EXPECT_FALSE(dtype_from("F128"));
  EXPECT_EQ(element_bytes(DType::kBF16), 2U);
}

TEST(DType, ConversionRefusesWhatItCannotRead) {
  std::vector<float> out(2);
  const std::vector<std::byte> bytes(8);
  EXPECT_TRUE(convert_to_float(DType::kF32, bytes, out));
  EXPECT_FALSE(convert_to_float(DType::kF16, bytes, out));  // four values, not two
  EXPECT_FALSE(convert_to_float(DType::kI32, bytes, out));
}

}  // namespace
}  // namespace troupe::formats
