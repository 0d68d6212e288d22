// Safetensors files made to hurt: each is refused with a sentence that names the tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "formats/safetensors.h"
#include "temporary_folder.h"

namespace troupe::formats {
namespace {

using ::testing::HasSubstr;

std::string with_header(const std::string& header, std::size_t data_bytes, std::uint64_t claimed = 0) {
  const std::uint64_t length = claimed != 0 ? claimed : header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + std::string(data_bytes, '\x22');
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

class HostileSafetensors : public ::testing::Test {
 protected:
  std::string refusal(const std::string& bytes) {
    const auto file = SafetensorsFile::open(folder_.write("hostile.safetensors", bytes));
    if (file) return "accepted";
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(file.error().where, HasSubstr("hostile.safetensors"));
    return file.error().message;
  }
  std::string refusal_of(const std::string& entries, std::size_t data_bytes) {
    return refusal(with_header("{" + entries + "}", data_bytes));
  }
  test::TemporaryFolder folder_;
};

TEST_F(HostileSafetensors, HeaderBeyondTheFile) {
  EXPECT_THAT(refusal(""), HasSubstr("shorter than its 8-byte header length"));
  EXPECT_THAT(refusal("1234567"), HasSubstr("shorter than its 8-byte header length"));
  EXPECT_THAT(refusal(with_header("{}", 0, 3)), HasSubstr("its header claims 3 bytes, the file has 10"));
  EXPECT_THAT(refusal(with_header("{}", 0, ~std::uint64_t{0})),
              HasSubstr("its header claims 18446744073709551615 bytes"));
  EXPECT_EQ(refusal(with_header("{}", 0)), "accepted");
}

// V18: a length that fits the file but no reader takes; nothing of that size is allocated. The writer stays below it.
TEST_F(HostileSafetensors, HeaderBeyondTheCap) {
  const auto path = folder_.write("sparse.safetensors", std::string("\x40\x9D\xDF\x07\0\0\0\0{}", 10));
  std::filesystem::resize_file(path, 132'095'296 + 4096);  // no block of it is on disk
  const auto file = SafetensorsFile::open(path);
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, HasSubstr("its header claims 132095296 bytes"));

  const auto target = folder_.path() / "long.safetensors";
  const Status written = write_safetensors(target, {}, {{"note", std::string(kSafetensorsHeaderBytesMax, 'x')}});
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(target));
}

TEST_F(HostileSafetensors, HeaderThatIsNoHeader) {
  EXPECT_THAT(refusal(with_header("{\"a\":", 0)), HasSubstr("not JSON"));
  EXPECT_THAT(refusal(with_header("[]", 0)), HasSubstr("an array"));
  EXPECT_THAT(refusal(with_header("7", 0)), HasSubstr("a number"));
  EXPECT_THAT(refusal(with_header("\"x\"", 0)), HasSubstr("a string"));
  EXPECT_THAT(refusal(with_header("{\"a\":7}", 0)), HasSubstr("a number at 'a'"));
  EXPECT_THAT(refusal(with_header("{\"a\xFF\":{}}", 0)), HasSubstr("not JSON"));
  EXPECT_THAT(refusal(with_header(std::string(100000, '['), 0)), HasSubstr("an array"));
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  EXPECT_THAT(refusal(with_header(deep, 0)), HasSubstr("unknown field 'a'"));
  EXPECT_THAT(refusal(with_header(R"({"__metadata__":{"a":{"b":"c"}}})", 0)), HasSubstr("a nested object"));
}

TEST_F(HostileSafetensors, EntriesThatLie) {
  EXPECT_EQ(refusal_of(entry("t", "F32", "[2]", "[0,8]"), 8), "accepted");
  EXPECT_THAT(refusal_of(entry("t", "F32", "[2]", "[0,8]"), 7),
              HasSubstr("tensor 't' lies at bytes 0 to 8 of 7 (truncated?)"));
  EXPECT_THAT(refusal_of(entry("t", "F32", "[2]", "[8,0]"), 8), HasSubstr("tensor 't' lies at bytes 8 to 0"));
  EXPECT_THAT(refusal_of(entry("t", "F32", "[2]", "[0,18446744073709551615]"), 8), HasSubstr("tensor 't' lies at"));
  EXPECT_THAT(refusal_of(entry("t", "F32", "[3]", "[0,8]"), 8),
              HasSubstr("tensor 't' has 8 bytes, its shape and type need 12"));
  EXPECT_THAT(refusal_of(entry("t", "BF16", "[2]", "[0,8]"), 8),
              HasSubstr("tensor 't' has 8 bytes, its shape and type need 4"));
  EXPECT_THAT(refusal_of(entry("t", "F99", "[2]", "[0,8]"), 8), HasSubstr("unknown type 'F99'"));
  EXPECT_THAT(refusal_of(entry("t", "F32", "[4611686018427387904,4]", "[0,8]"), 8), HasSubstr("impossible shape"));
  EXPECT_THAT(refusal_of(entry("t", "U8", "[4611686018427387904,4611686018427387904,0]", "[0,0]"), 0),
              HasSubstr("impossible shape"));
  EXPECT_THAT(refusal_of(entry("t", "F32", "[-2]", "[0,8]"), 8), HasSubstr("a negative number"));
  EXPECT_THAT(refusal_of(entry("t", "F32", "[2.5]", "[0,8]"), 8), HasSubstr("a fractional number"));
  EXPECT_THAT(refusal_of(entry("t", "F32", "[2]", "[0,8,9]"), 8), HasSubstr("a third data offset"));
  EXPECT_THAT(refusal_of(entry("t", "F32", "[2]", "[0]"), 8), HasSubstr("without dtype, shape and two data_offsets"));
  EXPECT_THAT(refusal_of(R"("t":{"dtype":"F32","shape":[2]})", 8),
              HasSubstr("without dtype, shape and two data_offsets"));
  EXPECT_THAT(refusal_of(R"("t":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8),
              HasSubstr("the field 'dtype' twice"));
}

TEST_F(HostileSafetensors, EntriesThatShareOrHideBytes) {
  const std::string first = entry("a", "F32", "[2]", "[0,8]");
  EXPECT_EQ(refusal_of(first + "," + entry("b", "F32", "[1]", "[8,12]"), 12), "accepted");
  EXPECT_THAT(refusal_of(first + "," + entry("b", "F32", "[1]", "[4,8]"), 8),
              HasSubstr("tensor 'b' overlaps tensor 'a'"));
  EXPECT_THAT(refusal_of(first + "," + entry("b", "F32", "[2]", "[0,8]"), 8), HasSubstr("overlaps"));
  EXPECT_THAT(refusal_of(first + "," + entry("b", "F32", "[1]", "[12,16]"), 16),
              HasSubstr("bytes of no tensor before 'b'"));
  EXPECT_THAT(refusal_of(first, 12), HasSubstr("bytes of no tensor at its end"));
  EXPECT_THAT(refusal_of(first + "," + first, 8), HasSubstr("the name 'a' twice"));
}

TEST_F(HostileSafetensors, IndexThatLies) {
  folder_.write("model-00001-of-00001.safetensors", with_header("{" + entry("a", "F32", "[1]", "[0,4]") + "}", 4));
  const auto refusal_of_index = [&](const std::string& index) {
    folder_.write("model.safetensors.index.json", index);
    const auto weights = SafetensorsFolder::open(folder_.path());
    return weights ? "accepted" : weights.error().to_string();
  };
  EXPECT_EQ(refusal_of_index(R"({"weight_map":{"a":"model-00001-of-00001.safetensors"}})"), "accepted");
  EXPECT_THAT(refusal_of_index("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal_of_index("{}"), HasSubstr("no weight_map"));
  EXPECT_THAT(refusal_of_index(R"({"weight_map":{"a":7}})"), HasSubstr("'a' is not a string"));
  EXPECT_THAT(refusal_of_index(R"({"weight_map":{"a":"../secret.safetensors"}})"), HasSubstr("outside the folder"));
  EXPECT_THAT(refusal_of_index(R"({"weight_map":{"a":"/etc/passwd"}})"), HasSubstr("outside the folder"));
  EXPECT_THAT(refusal_of_index(R"({"weight_map":{"a":"none.safetensors"}})"), HasSubstr("No such file"));
  EXPECT_THAT(refusal_of_index(
                  R"({"weight_map":{"a":"model-00001-of-00001.safetensors","b":"model-00001-of-00001.safetensors"}})"),
              HasSubstr("places 'b' in"));
  EXPECT_THAT(refusal_of_index(R"({"weight_map":{}})"), "accepted");
  EXPECT_THAT(refusal_of_index(R"({"weight_map":{"b":"model-00001-of-00001.safetensors"}})"),
              HasSubstr("holds 'a', which the index does not place there"));
}

}  // namespace
}  // namespace troupe::formats
