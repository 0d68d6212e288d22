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

/// The nearest of the values that a format's codes have, the even code where two are as near.
std::uint8_t nearest(float x, const Floats& values) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double d = std::abs(static_cast<double>(values[i]) - static_cast<double>(std::abs(x)));
    const double least = std::abs(static_cast<double>(values[best]) - static_cast<double>(std::abs(x)));
    if (d < least || (d == least && i % 2 == 0)) best = i;
  }
  return static_cast<std::uint8_t>(best);
}

Floats magnitudes_of(CudaQuantised layout) {
  Floats values;
  const bool fp4 = layout == CudaQuantised::kMxFp4;
  for (int i = 0; i < (fp4 ? 8 : 127); ++i)
    values.push_back(fp4 ? formats::e2m1_to_float(static_cast<std::uint8_t>(i)) : formats::e4m3_to_float(static_cast<std::uint8_t>(i)));
  return values;
}

/// Numbers of very different sizes, ties, zeros.
Floats difficult(std::int64_t rows, std::int64_t cols) {
  Floats x = testing::filled(rows * cols, 3, 2);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<float>(i / 97 % 40) - 20);
  for (std::size_t i = 0; i < 32; ++i) x[i] = static_cast<float>(i) * 0.25F;
  for (std::size_t i = 32; i < 64; ++i) x[i] = 0;
  return x;
}

TEST_P(CudaQuantiseKernels, GroupsOf32GetTheirPowerOfTwoAndTheNearestCodes) {
  for (const CudaQuantised layout : {CudaQuantised::kMxFp8, CudaQuantised::kMxFp4}) {
    const bool fp4 = layout == CudaQuantised::kMxFp4;
    const Floats x = difficult(5, 96), values = magnitudes_of(layout);
    const On<float> dev_x(x);
    const On<std::uint8_t> dev_codes(Bytes(x.size() / (fp4 ? 2 : 1))), dev_scales(Bytes(15));
    CudaQuantise a{dev_x.get(), dev_codes.get(), dev_scales.get(), 5, 96, layout, false};
    run(&CudaLibrary::quantise, a);
    const Bytes codes = dev_codes.read(), scales = dev_scales.read();
    for (std::size_t g = 0; g < 15; ++g) {
      float most = 0;
      for (std::size_t i = 0; i < 32; ++i) most = std::max(most, std::abs(x[32 * g + i]));
      const int exponent = most == 0 ? 0 : std::ilogb(most) - (fp4 ? 2 : 8);
      ASSERT_EQ(scales[g], exponent + 127) << g;
      for (std::size_t i = 32 * g; i < 32 * g + 32; ++i) {
        const float scaled = std::ldexp(x[i], -exponent);
        const unsigned code = fp4 ? (i % 2 == 0 ? codes[i / 2] & 15U : codes[i / 2] / 16U) : codes[i];
        EXPECT_EQ(code & (fp4 ? 7U : 127U), nearest(scaled, values)) << scaled;
        EXPECT_EQ((code & (fp4 ? 8U : 128U)) != 0, std::signbit(scaled)) << scaled;
      }
    }
  }
}

TEST_P(CudaQuantiseKernels, BlocksOf128By128GetTheNearestCodes) {
  const Floats x = difficult(130, 140), values = magnitudes_of(CudaQuantised::kFp8Blocks);
  const On<float> dev_x(x);
  for (const CudaQuantised layout : {CudaQuantised::kFp8Blocks, CudaQuantised::kFp8BlocksE8}) {
    const On<std::uint8_t> dev_codes(Bytes(x.size()));
    const On<float> dev_scales(Floats(4));
    run(&CudaLibrary::quantise, CudaQuantise{dev_x.get(), dev_codes.get(), dev_scales.get(), 130, 140, layout, false});
    const Bytes codes = dev_codes.read();
    const Floats scales = dev_scales.read();
    Bytes powers(16);
    std::memcpy(powers.data(), scales.data(), 16);
    for (std::size_t block = 0; block < 4; ++block) {
      float most = 0;
      const auto each = [&](auto use) {
        for (std::size_t row = block / 2 * 128; row < std::min<std::size_t>(130, block / 2 * 128 + 128); ++row)
          for (std::size_t col = block % 2 * 128; col < std::min<std::size_t>(140, block % 2 * 128 + 128); ++col) use(row * 140 + col);
      };
      each([&](std::size_t i) { most = std::max(most, std::abs(x[i])); });
      float scale = most / 448;
      if (layout == CudaQuantised::kFp8BlocksE8) {
        scale = formats::e8m0_to_float(powers[block]);
        EXPECT_GE(scale * 448, most);
        EXPECT_LT(scale * 224, most);
      } else {
        EXPECT_EQ(scales[block], scale);
      }
      each([&](std::size_t i) { ASSERT_EQ(codes[i] & 127U, nearest(x[i] / scale, values)) << x[i] / scale; });
    }
  }
}

TEST_P(CudaQuantiseKernels, ColumnsThatDoNotFitAreRefused) {
  CudaQuantise a;
  a.rows = 1, a.cols = 33, a.layout = CudaQuantised::kMxFp8;
  EXPECT_NE(testing::target().library->quantise(&a, nullptr), nullptr);
}

}  // namespace
}  // namespace troupe::kernels
