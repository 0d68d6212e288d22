// 8- and 4-bit storage against goldens that torch made (tests/golden/formats/gen_quant.py), and what is wrong with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "formats/quantised.h"

namespace troupe::formats {
namespace {

using ::testing::HasSubstr;

class QuantisedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto file = SafetensorsFile::open(std::filesystem::path(TROUPE_GOLDEN_DIR) / "formats" / "quantised.safetensors");
    ASSERT_TRUE(file) << file.error().to_string();
    file_ = std::make_unique<SafetensorsFile>(std::move(*file));
  }
  /// A tensor of the file under another type: the goldens hold raw bytes.
  [[nodiscard]] TensorView view(const std::string& name, DType dtype) const {
    TensorView tensor = *file_->find(name);
    tensor.dtype = dtype;
    return tensor;
  }
  [[nodiscard]] std::vector<float> floats(const std::string& name) const {
    const TensorView& tensor = *file_->find(name);
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    EXPECT_TRUE(convert_to_float(tensor.dtype, tensor.bytes, values));
    return values;
  }
  std::unique_ptr<SafetensorsFile> file_;
};

TEST_F(QuantisedTest, Fp8BlocksWithBothKindsOfScale) {
  const TensorView weight = view("fp8.weight_bytes", DType::kF8E4M3);
  std::vector<float> out(200 * 300);
  ASSERT_TRUE(dequantise_fp8(weight, view("fp8.scale_inv_f32", DType::kF32), out));
  EXPECT_EQ(out, floats("fp8.dequant_f32scale"));
  ASSERT_TRUE(dequantise_fp8(weight, view("fp8.scale_e8m0_bytes", DType::kF8E8M0), out));
  EXPECT_EQ(out, floats("fp8.dequant_e8m0"));
}

TEST_F(QuantisedTest, Fp4Pairs) {
  std::vector<float> out(8 * 128);
  ASSERT_TRUE(dequantise_fp4(view("fp4.packed_bytes", DType::kI8), view("fp4.scale_e8m0_bytes", DType::kF8E8M0), out));
  EXPECT_EQ(out, floats("fp4.dequant"));
}

TEST_F(QuantisedTest, Mxfp4IsTransposed) {
  std::vector<float> out(2 * 96 * 6);
  ASSERT_TRUE(dequantise_mxfp4(view("mxfp4.blocks", DType::kU8), view("mxfp4.scales", DType::kU8), out));
  EXPECT_EQ(out, floats("mxfp4.dequant"));
}

/// The code whose number is nearest, ties to the even one.
template <class Read>
unsigned nearest_code(float size, unsigned codes, Read&& read) {
  unsigned best = 0;
  for (unsigned code = 1; code < codes; ++code) {
    const double now = std::fabs(static_cast<double>(read(code)) - size), before = std::fabs(static_cast<double>(read(best)) - size);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(Quantise, EveryNumberBecomesTheNearestCode) {
  std::vector<float> sizes{0, 0x1p-149F, 0x1p-10F, 3 * 0x1p-11F, 0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5, 1e30F, std::numeric_limits<float>::infinity()};
  for (int exponent = -14; exponent <= 9; ++exponent)
    for (int i = 0; i < 64; ++i) sizes.push_back(std::ldexp(1 + static_cast<float>(i) / 64, exponent));
  for (const float size : sizes) {
    const float cut = std::min(size, 1e6F);
    const unsigned e4m3 = nearest_code(cut, 0x7F, [](unsigned c) { return e4m3_to_float(static_cast<std::uint8_t>(c)); });
    const unsigned e2m1 = nearest_code(cut, 8, [](unsigned c) { return e2m1_to_float(static_cast<std::uint8_t>(c)); });
    EXPECT_EQ(float_to_e4m3(size), e4m3) << size;
    EXPECT_EQ(float_to_e4m3(-size), e4m3 | 0x80U) << size;
    EXPECT_EQ(float_to_e2m1(size), e2m1) << size;
    EXPECT_EQ(float_to_e2m1(-size), e2m1 | 8U) << size;
  }
  EXPECT_TRUE(std::isnan(e4m3_to_float(float_to_e4m3(std::nanf("")))));
  EXPECT_EQ(float_to_e2m1(std::nanf("")), 7U);
}

/// Numbers of very different sizes, a block or group of zeros among them.
std::vector<float> spread(std::int64_t rows, std::int64_t cols) {
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(std::sin(static_cast<float>(3 * i + 1)), static_cast<int>(i / 7 % 11) - 5);
    if (static_cast<std::int64_t>(i) / cols < 128 && static_cast<std::int64_t>(i) % cols < 128) x[i] = 0;
  }
  return x;
}

TEST(Quantise, Fp8BlocksReadBackWithinHalfAStep) {
  constexpr std::int64_t kOut = 150, kIn = 270;
  const auto x = spread(kOut, kIn);
  const Quantised small = quantise_fp8(x, kOut, kIn);
  std::vector<float> back(x.size());
  ASSERT_TRUE(dequantise_fp8({"w", DType::kF8E4M3, {kOut, kIn}, small.codes}, {"s", DType::kF32, {2, 3}, small.scales}, back));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(back[i], x[i], std::fabs(x[i]) / 16 + 16.0 / 448 / 512) << i;
  float most = 0;
  for (std::int64_t row = 128; row < kOut; ++row)
    for (std::int64_t col = 256; col < kIn; ++col) most = std::max(most, std::fabs(x[static_cast<std::size_t>(row * kIn + col)]));
  float scale = 0;
  std::memcpy(&scale, small.scales.data() + 5 * sizeof scale, sizeof scale);
  EXPECT_EQ(scale, most / 448) << "of the last, small block";
  std::memcpy(&scale, small.scales.data(), sizeof scale);
  EXPECT_EQ(scale, 1) << "of zeros";
  EXPECT_EQ(quantise_fp8(back, kOut, kIn).codes, small.codes) << "what was rounded once stays";
}

TEST(Quantise, MicroscalingGroups) {
  constexpr std::int64_t kOut = 140, kIn = 160;
  const auto x = spread(kOut, kIn);
  const Quantised four = quantise_mxfp4(x), eight = quantise_mxfp8(x);
  std::vector<float> back(x.size());
  ASSERT_TRUE(dequantise_fp4({"w", DType::kU8, {kOut, kIn / 2}, four.codes}, {"s", DType::kU8, {kOut, kIn / 32}, four.scales}, back));
  for (std::size_t first = 0; first < x.size(); first += 32) {
    float most = 0;
    for (std::size_t i = first; i < first + 32; ++i) most = std::max(most, std::fabs(x[i]));
    const float four_scale = e8m0_to_float(std::to_integer<std::uint8_t>(four.scales[first / 32]));
    const float eight_scale = e8m0_to_float(std::to_integer<std::uint8_t>(eight.scales[first / 32]));
    if (most == 0) {
      EXPECT_EQ(four_scale, 1);
      continue;
    }
    EXPECT_TRUE(most / four_scale >= 4 && most / four_scale < 8) << most << " " << four_scale;
    EXPECT_TRUE(most / eight_scale >= 256 && most / eight_scale < 512) << most << " " << eight_scale;
    for (std::size_t i = first; i < first + 32; ++i) {
      ASSERT_NEAR(back[i], x[i], std::max(std::fabs(x[i]) / 4, four_scale / 4)) << i;
      const float read = e4m3_to_float(std::to_integer<std::uint8_t>(eight.codes[i])) * eight_scale;
      ASSERT_NEAR(read, x[i], std::max(std::fabs(x[i]) / 8, eight_scale / 1024)) << i;
    }
  }
}

TEST_F(QuantisedTest, ScalesThatDoNotFitAreNamed) {
  std::vector<float> out(200 * 300);
  TensorView scale = view("fp8.scale_inv_f32", DType::kF32);
  scale.shape = {3, 2};
  EXPECT_THAT(dequantise_fp8(view("fp8.weight_bytes", DType::kF8E4M3), scale, out).error().message,
              HasSubstr("'fp8.scale_inv_f32' is F32 [3, 2], needed is F32 or F8_E8M0 [2, 3]"));
  EXPECT_THAT(dequantise_fp8(view("fp8.weight_bytes", DType::kU8), scale, out).error().message,
              HasSubstr("'fp8.weight_bytes' is U8 [200, 300]"));
  EXPECT_THAT(dequantise_fp4(view("fp4.packed_bytes", DType::kI8), view("fp8.scale_e8m0_bytes", DType::kU8),
                             std::span(out).first(8 * 128))
                  .error()
                  .message,
              HasSubstr("a scale per 32 columns"));
  EXPECT_THAT(dequantise_mxfp4(view("mxfp4.blocks", DType::kU8), view("fp4.scale_e8m0_bytes", DType::kU8),
                               std::span(out).first(2 * 96 * 6))
                  .error()
                  .message,
              HasSubstr("a scale per group of 32"));
}

TEST(Fp8, EveryCode) {  // OCP 8-bit floating point, E4M3 without infinities
  EXPECT_EQ(e4m3_to_float(0x7E), 448.0F);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9F);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6F);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7F)) && std::isnan(e4m3_to_float(0xFF)));
  for (int i = 0; i < 0x7E; ++i) {
    EXPECT_LT(e4m3_to_float(static_cast<std::uint8_t>(i)), e4m3_to_float(static_cast<std::uint8_t>(i + 1)));
    EXPECT_EQ(e4m3_to_float(static_cast<std::uint8_t>(i | 0x80)), -e4m3_to_float(static_cast<std::uint8_t>(i)));
  }
  EXPECT_EQ(e8m0_to_float(127), 1.0F);
  EXPECT_EQ(e8m0_to_float(0), 0x1p-127F);
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

}  // namespace
}  // namespace troupe::formats
