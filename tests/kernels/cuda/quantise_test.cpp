// Numbers in 8 and 4 bits on CUDA: read as formats/quantised.h reads them, written as the nearest.
#include "formats/quantised.h"

#include <filesystem>

#include "tests/kernels/cuda/target.h"

namespace troupe::kernels {
namespace {

using testing::Floats;
using testing::On;
using Bytes = std::vector<std::uint8_t>;

class CudaQuantiseKernels : public testing::CudaKernels {
 protected:
  /// The kernel's reading of codes and scales.
  template <class Scale>
  Floats read(const Bytes& codes, const std::vector<Scale>& scales, CudaQuantise a) {
    const On<std::uint8_t> dev_codes(codes);
    const On<Scale> dev_scales(scales);
    const On<float> dev_x(Floats(static_cast<std::size_t>(a.rows * a.cols), -7));
    a.x = dev_x.get(), a.codes = dev_codes.get(), a.scales = dev_scales.get();
    run(&CudaLibrary::dequantise, a);
    return dev_x.read();
  }
};
TROUPE_ON_ALL_WAYS(CudaQuantiseKernels);

Bytes bytes_of(const formats::TensorView& view) {
  Bytes bytes;
  for (const std::byte b : view.bytes) bytes.push_back(std::to_integer<std::uint8_t>(b));
  return bytes;
}

TEST_P(CudaQuantiseKernels, ReadsTheGoldensOfTorch) {
  std::filesystem::path goldens = TROUPE_GOLDEN_DIR;
  if (!exists(goldens)) goldens = "tests/golden";  // built elsewhere, run at the root of a checkout
  auto file = formats::SafetensorsFile::open(goldens / "formats" / "quantised.safetensors");
  ASSERT_TRUE(file) << file.error().to_string();
  const auto floats = [&](const std::string& name) {
    const formats::TensorView& tensor = *file->find(name);
    Floats values(static_cast<std::size_t>(tensor.elements()));
    EXPECT_TRUE(convert_to_float(tensor.dtype, tensor.bytes, values));
    return values;
  };
  const auto bytes = [&](const std::string& name) { return bytes_of(*file->find(name)); };
  const CudaQuantise fp8{nullptr, nullptr, nullptr, 200, 300, CudaQuantised::kFp8Blocks, false};
  EXPECT_EQ(read(bytes("fp8.weight_bytes"), floats("fp8.scale_inv_f32"), fp8), floats("fp8.dequant_f32scale"));
  CudaQuantise other = fp8;
  other.layout = CudaQuantised::kFp8BlocksE8;
  EXPECT_EQ(read(bytes("fp8.weight_bytes"), bytes("fp8.scale_e8m0_bytes"), other), floats("fp8.dequant_e8m0"));
  const CudaQuantise fp4{nullptr, nullptr, nullptr, 8, 128, CudaQuantised::kMxFp4, false};
  EXPECT_EQ(read(bytes("fp4.packed_bytes"), bytes("fp4.scale_e8m0_bytes"), fp4), floats("fp4.dequant"));
  const Bytes blocks = bytes("mxfp4.blocks"), scales = bytes("mxfp4.scales");  // [2 experts, 6, 3, 16] and [2, 6, 3]
  Floats all;
  for (std::size_t e = 0; e < 2; ++e) {
    const CudaQuantise expert{nullptr, nullptr, nullptr, 6, 96, CudaQuantised::kMxFp4, true};
    const Floats x = read(Bytes(&blocks[e * 288], &blocks[e * 288] + 288), Bytes(&scales[e * 18], &scales[e * 18] + 18), expert);
    all.insert(all.end(), x.begin(), x.end());
  }
  EXPECT_EQ(all, floats("mxfp4.dequant"));
}

TEST_P(CudaQuantiseKernels, EveryCodeIsReadAsTheFormatSays) {
  Bytes codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
  const Floats x = read(codes, Floats{1, 1}, {nullptr, nullptr, nullptr, 1, 256, CudaQuantised::kFp8Blocks, false});
  for (std::size_t i = 0; i < 256; ++i) {
    const float right = formats::e4m3_to_float(static_cast<std::uint8_t>(i));
    EXPECT_TRUE(x[i] == right || (std::isnan(x[i]) && std::isnan(right))) << i;
  }
  const Floats scaled = read(Bytes(32 * 256, 0x38), codes, {nullptr, nullptr, nullptr, 64, 128, CudaQuantised::kMxFp8, false});  // 0x38: 1
  for (std::size_t i = 0; i < 256; ++i) {
    const float right = formats::e8m0_to_float(static_cast<std::uint8_t>(i));
    EXPECT_TRUE(scaled[32 * i] == right || (std::isnan(scaled[32 * i]) && std::isnan(right))) << i;
  }
}

/// Numbers of very different sizes, ties, zeros.
Floats difficult(std::int64_t rows, std::int64_t cols) {
  Floats x = testing::filled(rows * cols, 3, 2);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<float>(i / 97 % 40) - 20);
  for (std::size_t i = 0; i < 32; ++i) x[i] = static_cast<float>(i) * 0.25F;
  for (std::size_t i = 32; i < 64; ++i) x[i] = 0;
  x[70] = 1e-40F;
  return x;
}

Bytes bytes_of(const std::vector<std::byte>& from) {
  Bytes bytes;
  for (const std::byte b : from) bytes.push_back(std::to_integer<std::uint8_t>(b));
  return bytes;
}

TEST_P(CudaQuantiseKernels, WritesTheBytesThatFormatsWrites) {
  for (const CudaQuantised layout : {CudaQuantised::kFp8Blocks, CudaQuantised::kMxFp8, CudaQuantised::kMxFp4}) {
    SCOPED_TRACE(static_cast<int>(layout));
    const Floats x = difficult(130, 160);
    const formats::Quantised right = layout == CudaQuantised::kFp8Blocks ? formats::quantise_fp8(x, 130, 160)
                                     : layout == CudaQuantised::kMxFp8   ? formats::quantise_mxfp8(x)
                                                                         : formats::quantise_mxfp4(x);
    const On<float> dev_x(x);
    const On<std::uint8_t> codes(Bytes(right.codes.size())), scales(Bytes(right.scales.size()));
    run(&CudaLibrary::quantise, CudaQuantise{dev_x.get(), codes.get(), scales.get(), 130, 160, layout, false});
    EXPECT_EQ(codes.read(), bytes_of(right.codes));
    EXPECT_EQ(scales.read(), bytes_of(right.scales));
  }
}

TEST_P(CudaQuantiseKernels, BlocksWithPowersOfTwoTakeTheLeastThatHoldsThem) {
  Floats x = difficult(1, 384);
  std::fill(x.begin() + 128, x.begin() + 256, 0.0F);
  x[200] = 448;  // exactly 1
  x[300] = 449;  // the next one
  const On<float> dev_x(x);
  const On<std::uint8_t> codes(Bytes(384)), scales(Bytes(3));
  run(&CudaLibrary::quantise, CudaQuantise{dev_x.get(), codes.get(), scales.get(), 1, 384, CudaQuantised::kFp8BlocksE8, false});
  EXPECT_EQ(scales.read()[1], 127);
  EXPECT_EQ(scales.read()[2], 128);
  for (std::size_t i = 0; i < 384; ++i)
    ASSERT_EQ(codes.read()[i], formats::float_to_e4m3(x[i] / formats::e8m0_to_float(scales.read()[i / 128]))) << x[i];
}

TEST_P(CudaQuantiseKernels, NanStaysOneWhereTheFormatHasIt) {
  Floats x(32, 1);
  x[3] = std::nanf("");
  const On<float> dev_x(x);
  const On<std::uint8_t> codes(Bytes(32)), scales(Bytes(4));
  run(&CudaLibrary::quantise, CudaQuantise{dev_x.get(), codes.get(), scales.get(), 1, 32, CudaQuantised::kFp8Blocks, false});
  EXPECT_EQ(codes.read()[3] & 127, 127);
  EXPECT_EQ(codes.read()[4], formats::float_to_e4m3(1 / (1.0F / 448)));
  run(&CudaLibrary::quantise, CudaQuantise{dev_x.get(), codes.get(), scales.get(), 1, 32, CudaQuantised::kMxFp8, false});
  EXPECT_EQ(scales.read()[0], 255);
}

TEST_P(CudaQuantiseKernels, ColumnsThatDoNotFitAreRefused) {
  CudaQuantise a;
  a.rows = 1, a.cols = 33, a.layout = CudaQuantised::kMxFp8;
  EXPECT_NE(testing::target().library->quantise(&a, nullptr), nullptr);
}

}  // namespace
}  // namespace troupe::kernels
