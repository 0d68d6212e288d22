// GGUF files made to hurt: each is refused with a sentence, none is trusted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/file.h"
#include "formats/gguf.h"
#include "temporary_folder.h"

namespace troupe::formats {
namespace {

using ::testing::HasSubstr;

/// Puts a file together value by value.
class Writer {
 public:
  template <class T>
  Writer& put(T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes.append(raw, sizeof raw);
    return *this;
  }
  Writer& text(std::string_view value) {
    put<std::uint64_t>(value.size());
    bytes += value;
    return *this;
  }
  Writer& header(std::uint64_t tensors, std::uint64_t pairs, std::uint32_t version = 3) {
    bytes += "GGUF";
    return put(version).put(tensors).put(pairs);
  }
  Writer& integer(std::string_view key, std::uint32_t value) { return text(key).put<std::uint32_t>(4).put(value); }
  Writer& tensor(std::string_view name, std::initializer_list<std::uint64_t> dims, std::uint32_t type,
                 std::uint64_t offset) {
    text(name).put(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t d : dims) put(d);
    return put(type).put(offset);
  }
  Writer& align() {
    bytes.append((32 - bytes.size() % 32) % 32, '\0');
    return *this;
  }
  Writer& data(std::size_t count) {
    bytes.append(count, '\x11');
    return *this;
  }
  std::string bytes;
};

class HostileGguf : public ::testing::Test {
 protected:
  std::string refusal(const Writer& writer) { return refusal(writer.bytes); }
  std::string refusal(const std::string& bytes) {
    const auto file = GgufFile::open(folder_.write("hostile.gguf", bytes));
    if (file) return "accepted";
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(file.error().where, HasSubstr("hostile.gguf"));
    return file.error().message;
  }
  test::TemporaryFolder folder_;
};

TEST_F(HostileGguf, WrongBeginning) {
  EXPECT_THAT(refusal(std::string()), HasSubstr("does not start with 'GGUF'"));
  EXPECT_THAT(refusal(std::string("PK\x03\x04 zip file")), HasSubstr("does not start with 'GGUF'"));
  EXPECT_THAT(refusal(Writer().header(0, 0, 99)), HasSubstr("version is 99"));
  EXPECT_THAT(refusal(std::string("GGUF\x03\0\0", 7)), HasSubstr("ends within its version"));
  EXPECT_EQ(refusal(Writer().header(0, 0)), "accepted");
}

TEST_F(HostileGguf, CountsBeyondTheFileReserveNothing) {
  EXPECT_THAT(refusal(Writer().header(0, ~std::uint64_t{0})), HasSubstr("metadata entries, more than it has room for"));
  EXPECT_THAT(refusal(Writer().header(~std::uint64_t{0}, 0)), HasSubstr("tensors, more than it has room for"));
  EXPECT_THAT(refusal(Writer().header(0, 1).text("k").put<std::uint32_t>(9).put<std::uint32_t>(4).put<std::uint64_t>(
                  1ULL << 61)),
              HasSubstr("the array 'k' claims 2305843009213693952 elements"));
  EXPECT_THAT(refusal(Writer().header(0, 1).text("k").put<std::uint32_t>(9).put<std::uint32_t>(8).put<std::uint64_t>(
                  1ULL << 40)),
              HasSubstr("the array 'k' claims"));
  EXPECT_THAT(refusal(Writer().header(0, 1).put<std::uint64_t>(~0ULL).data(40)),
              HasSubstr("ends within a metadata key"));
  EXPECT_THAT(refusal(Writer().header(0, 1).text("k").put<std::uint32_t>(8).put<std::uint64_t>(1ULL << 63).data(9)),
              HasSubstr("ends within the metadata entry 'k'"));
}

TEST_F(HostileGguf, MetadataThatIsNoMetadata) {
  EXPECT_THAT(refusal(Writer().header(0, 1).text("k").put<std::uint32_t>(77).data(8)), HasSubstr("unknown kind 77"));
  EXPECT_THAT(
      refusal(
          Writer().header(0, 1).text("k").put<std::uint32_t>(9).put<std::uint32_t>(9).put<std::uint64_t>(1).data(64)),
      HasSubstr("unsupported kind 9"));
  EXPECT_THAT(refusal(Writer().header(0, 2).integer("k", 1).integer("k", 2)), HasSubstr("'k' occurs twice"));
  EXPECT_THAT(refusal(Writer().header(0, 1).integer("general.alignment", 0)), HasSubstr("general.alignment is 0"));
  EXPECT_THAT(refusal(Writer().header(0, 1).integer("general.alignment", 33)), HasSubstr("general.alignment is 33"));
}

TEST_F(HostileGguf, TensorsThatDoNotFit) {
  EXPECT_EQ(refusal(Writer().header(1, 0).tensor("t", {4}, 0, 0).align().data(16)), "accepted");
  EXPECT_THAT(refusal(Writer().header(1, 0).tensor("t", {5}, 0, 0).align().data(16)),
              HasSubstr("tensor 't' needs bytes 0 to 20 of 16 (truncated?)"));
  EXPECT_THAT(refusal(Writer().header(1, 0).tensor("t", {4}, 0, ~std::uint64_t{0} - 8).align().data(16)),
              HasSubstr("tensor 't' needs bytes"));
  EXPECT_THAT(refusal(Writer().header(1, 0).tensor("t", {1ULL << 40, 1ULL << 40}, 0, 0).align().data(16)),
              HasSubstr("impossible shape"));
  EXPECT_THAT(refusal(Writer().header(1, 0).tensor("t", {4, 0}, 0, 0).align().data(16)), HasSubstr("impossible shape"));
  EXPECT_THAT(refusal(Writer().header(1, 0).tensor("t", {33}, 2, 0).align().data(64)),
              HasSubstr("Q4_0 with rows of 33, not a multiple of 32"));
  EXPECT_THAT(refusal(Writer().header(1, 0).tensor("t", {1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, 0).align().data(64)),
              HasSubstr("9 dimensions"));
  EXPECT_THAT(refusal(Writer().header(2, 0).tensor("t", {4}, 0, 0).tensor("t", {4}, 0, 32).align().data(64)),
              HasSubstr("two tensors are named 't'"));
  EXPECT_THAT(refusal(Writer().header(2, 0).tensor("t", {8}, 0, 0).tensor("u", {4}, 0, 16).align().data(64)),
              HasSubstr("tensor 'u' overlaps tensor 't'"));
}

TEST_F(HostileGguf, EveryTruncationOfAGoodFileIsRefused) {
  const auto whole = read_file(std::filesystem::path(TROUPE_GOLDEN_DIR) / "formats" / "all_types.gguf");
  ASSERT_TRUE(whole);
  for (std::size_t length = 0; length < 3000; length += 37)
    ASSERT_NE(refusal(whole->substr(0, length)), "accepted") << length;
  EXPECT_NE(refusal(whole->substr(0, whole->size() / 2)), "accepted");
}

TEST_F(HostileGguf, ChangedBytesNeverCrash) {
  const auto whole = read_file(std::filesystem::path(TROUPE_GOLDEN_DIR) / "formats" / "all_types.gguf");
  ASSERT_TRUE(whole);
  int refused = 0;
  for (std::size_t at = 4; at < 1500; at += 7)
    for (const char change : {'\xFF', '\x01'}) {
      std::string bytes = *whole;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      refused += GgufFile::open(folder_.write("changed.gguf", bytes)) ? 0 : 1;
    }
  EXPECT_GT(refused, 70);
}

}  // namespace
}  // namespace troupe::formats
