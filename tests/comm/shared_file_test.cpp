#include "comm/shared_file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "base/file.h"

namespace troupe::comm {
namespace {

constexpr std::size_t kBytes = 3 * 4096;

struct MemoryFile {
  FileDescriptor fd{::memfd_create("test", MFD_CLOEXEC)};
  std::byte* data = nullptr;
  MemoryFile() {
    if (::ftruncate(fd.get(), kBytes) != 0) std::abort();
    data = static_cast<std::byte*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  }
  ~MemoryFile() { ::munmap(data, kBytes); }
};

TEST(SharedFile, AnotherProcessSeesTheBytes) {
  MemoryFile memory;
  std::memset(memory.data, 7, kBytes);
  const SharedFile file = share_file(memory.fd.get(), 4096, 4096).value();
  const pid_t child = ::fork();
  if (child == 0) {
    memory.fd = {}; // only through the parent's
    const auto mapped = SharedMapping::open(file);
    ::_exit(mapped && mapped->bytes().size() == 4096 && mapped->bytes()[4095] == std::byte{7} ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(SharedFile, WhatIsNotThereIsRefused) {
  MemoryFile memory, other;
  const SharedFile good = share_file(memory.fd.get(), 0, kBytes).value();
  EXPECT_TRUE(SharedMapping::open(good));
  SharedFile bad = good;
  bad.machine = "another";
  EXPECT_FALSE(SharedMapping::open(bad)) << "a path means nothing on another machine";
  bad = good;
  bad.descriptor = other.fd.get();
  EXPECT_FALSE(SharedMapping::open(bad)) << "the descriptor stands for another file by now";
  bad = good;
  bad.offset = 4096;
  EXPECT_FALSE(SharedMapping::open(bad)) << "beyond the end";
  bad = good;
  bad.pid = 0;
  EXPECT_FALSE(SharedMapping::open(bad));
  EXPECT_FALSE(SharedMapping::open({}));
}

TEST(HugeBuffer, HoldsWhatIsWritten) {
  auto buffer = HugeBuffer::create(5 << 20);
  ASSERT_TRUE(buffer);
  std::memset(buffer->bytes().data(), 1, buffer->bytes().size());
  const HugeBuffer moved = std::move(*buffer);
  EXPECT_EQ(moved.bytes().size(), std::size_t{5} << 20);
  EXPECT_EQ(moved.bytes().back(), std::byte{1});
}

} // namespace
} // namespace troupe::comm
