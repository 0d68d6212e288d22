#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "temporary_folder.h"

namespace troupe::formats {
namespace {

using ::testing::HasSubstr;

TensorView view(const std::string& name, std::vector<std::int64_t> shape, const std::vector<float>& values) {
  return {name, DType::kF32, std::move(shape), std::as_bytes(std::span(values))};
}

std::vector<float> counting(std::size_t n, float first) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

std::vector<float> values_of(const TensorView& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  EXPECT_TRUE(convert_to_float(tensor.dtype, tensor.bytes, values));
  return values;
}

TEST(Safetensors, WritesWhatItReads) {
  const test::TemporaryFolder folder;
  const auto a = counting(6, 0);
  const auto b = counting(1, 9);
  const std::vector<float> none;
  const std::vector<TensorView> tensors = {view("a", {2, 3}, a), view("empty", {0, 4}, none), view("scalar", {}, b)};
  const auto path = folder.path() / "x.safetensors";
  ASSERT_TRUE(write_safetensors(path, tensors, {{"format", "pt"}}));
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << file.error().to_string();
  EXPECT_EQ(file->metadata().at("format"), "pt");
  ASSERT_EQ(file->tensors().size(), 3U);
  EXPECT_EQ(values_of(*file->find("a")), a);
  EXPECT_EQ(file->find("a")->shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(values_of(*file->find("scalar")), b);
  EXPECT_TRUE(file->find("empty")->bytes.empty());
  EXPECT_EQ(file->find("b"), nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file->find("a")->bytes.data()) % 64, 0U);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path(), path);  // no temporary file is left
}

TEST(Safetensors, RefusesToWriteNonsense) {
  const test::TemporaryFolder folder;
  const auto a = counting(6, 0);
  const auto path = folder.path() / "x.safetensors";
  const std::vector<TensorView> twice = {view("a", {6}, a), view("a", {6}, a)};
  EXPECT_THAT(write_safetensors(path, twice).error().message, HasSubstr("two tensors are named 'a'"));
  const std::vector<TensorView> wrong = {view("a", {7}, a)};
  EXPECT_THAT(write_safetensors(path, wrong).error().message, HasSubstr("brings 24 bytes, its shape and type need 28"));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(write_safetensors(folder.path() / "no" / "x", {}).error().code, ErrorCode::kNotFound);
}

TEST(Safetensors, ShardsAndTheirIndexRoundTrip) {
  const test::TemporaryFolder folder;
  const auto a = counting(8, 0);
  const auto b = counting(8, 100);
  const auto c = counting(2, 200);
  const std::vector<TensorView> tensors = {view("a", {8}, a), view("b", {2, 4}, b), view("c", {2}, c)};
  ASSERT_TRUE(write_safetensors_folder(folder.path(), tensors, Bytes{40}));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "model-00001-of-00002.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "model-00002-of-00002.safetensors"));
  const auto weights = SafetensorsFolder::open(folder.path());
  ASSERT_TRUE(weights) << weights.error().to_string();
  ASSERT_EQ(weights->tensors().size(), 3U);
  EXPECT_EQ(values_of(*weights->find("a")), a);
  EXPECT_EQ(values_of(*weights->find("b")), b);
  EXPECT_EQ(values_of(*weights->find("c")), c);
}

TEST(Safetensors, AnExportInTheOtherLayoutReplacesTheOldOne) {
  const test::TemporaryFolder folder;
  const auto old_values = counting(8, 0);
  const auto new_values = counting(8, 50);
  const std::vector<TensorView> before = {view("a", {8}, old_values), view("b", {8}, old_values)};
  const std::vector<TensorView> after = {view("a", {8}, new_values), view("b", {8}, new_values)};
  ASSERT_TRUE(write_safetensors_folder(folder.path(), before, Bytes{32}));
  ASSERT_TRUE(write_safetensors_folder(folder.path(), after, Bytes{1000}));
  EXPECT_EQ(values_of(*SafetensorsFolder::open(folder.path())->find("b")), new_values);
  ASSERT_TRUE(write_safetensors_folder(folder.path(), before, Bytes{32}));
  EXPECT_EQ(values_of(*SafetensorsFolder::open(folder.path())->find("b")), old_values);
}

TEST(Safetensors, AFolderWithoutWeightsSaysSo) {
  const test::TemporaryFolder folder;
  const auto weights = SafetensorsFolder::open(folder.path());
  ASSERT_FALSE(weights);
  EXPECT_EQ(weights.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(weights.error().to_string(), HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
}

}  // namespace
}  // namespace troupe::formats
