#include "observe/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace troupe::observe {
namespace {

TEST(Pss, ReadsTheSumNotItsParts) {
  EXPECT_EQ(*parse_pss("00400000-7fff rollup\nRss:  900 kB\nPss:   123 kB\nPss_Anon: 7 kB\n"), 123u * 1024);
  EXPECT_FALSE(parse_pss("Rss: 900 kB\nPss_Anon: 7 kB\n"));
}

TEST(Pss, AMissingProcessIsNotFoundAndCountsNothing) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_FALSE(process_pss(child));
  EXPECT_EQ(process_pss(child).error().code, ErrorCode::kNotFound);
  MemorySampler sampler;
  EXPECT_EQ(sampler.sample(std::array{child}), 0u);
}

TEST(MemorySampler, KeepsThePeakAndCountsSharedPagesOnce) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer's own shadow of the pages is larger than they are";
#endif
  MemorySampler sampler;
  constexpr std::size_t kBytes = 32 << 20;
  const std::array self{::getpid()};
  const std::uint64_t before = sampler.sample(self);
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  int gate[2];
  ASSERT_EQ(::pipe(gate), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::memset(memory, 2, kBytes);  // maps the same pages
    while (::write(gate[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(gate[0], &byte, 1), 1);
  const std::uint64_t both = sampler.sample(std::array{::getpid(), child});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::munmap(memory, kBytes);
  ::close(gate[0]), ::close(gate[1]);
  EXPECT_GT(both, before + kBytes * 9 / 10);
  EXPECT_LT(both, before + kBytes * 3 / 2) << "the shared 32 MiB were counted twice";
  EXPECT_EQ(sampler.peak_bytes(), both);
  EXPECT_LT(sampler.sample(self), both);
  EXPECT_EQ(sampler.peak_bytes(), both);
}

}  // namespace
}  // namespace troupe::observe
