// 8- and 4-bit storage against goldens that torch made (tests/golden/formats/gen_quant.py), and what is wrong with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

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
