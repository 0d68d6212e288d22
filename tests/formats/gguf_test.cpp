#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <vector>

#include "formats/safetensors.h"

namespace troupe::formats {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(TROUPE_GOLDEN_DIR) / "formats";

TEST(Gguf, ReadsMetadataOfEveryKind) {
  const auto file = GgufFile::open(kFolder / "all_types.gguf");
  ASSERT_TRUE(file) << file.error().to_string();
  EXPECT_EQ(file->version(), 3U);
  EXPECT_EQ(file->string("general.architecture"), "llama");
  EXPECT_EQ(file->integer("test.answer"), 42);
  EXPECT_EQ(file->number("test.answer"), 42.0);
  EXPECT_EQ(file->number("test.half"), 0.5);
  EXPECT_EQ(file->boolean("test.yes"), true);
  EXPECT_EQ(file->string("test.text"),
            "gr\xC3\xBC\xC3\x9F"
            "e");
  EXPECT_EQ(std::vector(file->strings("test.words").begin(), file->strings("test.words").end()),
            (std::vector<std::string_view>{"a", "", "bc"}));
  EXPECT_EQ(std::vector(file->integers("test.counts").begin(), file->integers("test.counts").end()),
            (std::vector<std::int64_t>{-1, 0, 70000}));
  EXPECT_EQ(std::vector(file->numbers("test.scores").begin(), file->numbers("test.scores").end()),
            (std::vector<double>{0.25, -1.5}));
  EXPECT_EQ(file->integer("test.text"), std::nullopt);
  EXPECT_EQ(file->value("test.none"), nullptr);
}

TEST(Gguf, DequantisesEveryTypeAsTheOracle) {
  const auto file = GgufFile::open(kFolder / "all_types.gguf");
  ASSERT_TRUE(file) << file.error().to_string();
  const auto expected = SafetensorsFile::open(kFolder / "all_types.safetensors");
  ASSERT_TRUE(expected) << expected.error().to_string();
  ASSERT_EQ(expected->tensors().size(), 8U);
  for (const TensorView& wanted : expected->tensors()) {
    const GgufTensor* tensor = file->find(wanted.name);
    ASSERT_NE(tensor, nullptr) << wanted.name;
    EXPECT_EQ(tensor->shape, wanted.shape) << wanted.name;
    EXPECT_EQ(gguf_type_name(tensor->type), wanted.name);
    std::vector<float> out(static_cast<std::size_t>(tensor->elements()));
    const auto status = dequantise(*tensor, out);
    ASSERT_TRUE(status) << status.error().to_string();
    std::vector<float> right(out.size());
    ASSERT_TRUE(convert_to_float(wanted.dtype, wanted.bytes, right));
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_FLOAT_EQ(out[i], right[i]) << wanted.name << " value " << i;
  }
}

TEST(Gguf, AnUnknownStorageTypeIsAnErrorOnlyWhenAsked) {
  const auto file = GgufFile::open(kFolder / "all_types.gguf");
  ASSERT_TRUE(file);
  const GgufTensor* tensor = file->find("unreadable");
  ASSERT_NE(tensor, nullptr);
  std::vector<float> out(static_cast<std::size_t>(tensor->elements()));
  const auto status = dequantise(*tensor, out);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message,
            "tensor 'unreadable' is stored as type 6; readable are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K");
}

TEST(Gguf, RefusesABufferOfAnotherSize) {
  const auto file = GgufFile::open(kFolder / "all_types.gguf");
  ASSERT_TRUE(file);
  std::vector<float> out(7);
  EXPECT_FALSE(dequantise(*file->find("F32"), out));
}

}  // namespace
}  // namespace troupe::formats
