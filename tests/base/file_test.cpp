#include "base/file.h"

#include <gtest/gtest.h>
#include <fcntl.h>
#include <unistd.h>

namespace troupe {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(make_folders(folder)); }
  void TearDown() override { fs::remove_all(folder); }
  fs::path folder = fs::temp_directory_path() / ("troupe_file_test." + std::to_string(::getpid()));
};

TEST_F(FileTest, WritesAtomicallyAndReadsBack) {
  const fs::path path = folder / "a.json";
  ASSERT_TRUE(write_file_atomic(path, "one"));
  ASSERT_TRUE(write_file_atomic(path, "two"));
  EXPECT_EQ(*read_file(path), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1) << "a temporary file was left";
}

TEST_F(FileTest, SaysWhatIsMissing) {
  const auto result = read_file(folder / "none");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kNotFound);
  EXPECT_NE(result.error().message.find("none"), std::string::npos);
}

TEST_F(FileTest, FullDiskLeavesTheOldFile) {
  const auto status = write_file_atomic("/dev/full/x", "data");
  EXPECT_FALSE(status);
  const FileDescriptor full(::open("/dev/full", O_WRONLY));
  const auto written = write_all(full.get(), std::as_bytes(std::span("data", 4)), "/dev/full");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kResourceExhausted);
}

TEST_F(FileTest, MapsWholeFilesAndEmptyOnes) {
  ASSERT_TRUE(write_file_atomic(folder / "m", "abc"));
  ASSERT_TRUE(write_file_atomic(folder / "e", ""));
  auto mapped = MappedFile::open(folder / "m");
  ASSERT_TRUE(mapped);
  EXPECT_EQ(mapped->bytes().size(), 3u);
  EXPECT_EQ(MappedFile::open(folder / "e")->bytes().size(), 0u);
  EXPECT_FALSE(MappedFile::open(folder));
}

} // namespace
} // namespace troupe
