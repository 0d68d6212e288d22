// Every kept input through its target, as a test of the usual build: no crash, no unbounded memory, no error that is none.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/file.h"

#define TROUPE_FUZZ_TARGET(name) extern "C" int fuzz_##name(const std::uint8_t* data, std::size_t size);
TROUPE_FUZZ_TARGETS
#undef TROUPE_FUZZ_TARGET

namespace {

namespace fs = std::filesystem;

struct Target {
  const char* name;
  int (*run)(const std::uint8_t*, std::size_t);
};

#define TROUPE_FUZZ_TARGET(name) Target{#name, fuzz_##name},
const Target kTargets[] = {TROUPE_FUZZ_TARGETS};
#undef TROUPE_FUZZ_TARGET

std::string current;  // the input a crash is due to

void name_the_input(int signal) {
  constexpr char kHead[] = "the input was ";
  [[maybe_unused]] auto n = ::write(2, kHead, sizeof kHead - 1);
  n = ::write(2, current.c_str(), current.size());
  n = ::write(2, "\n", 1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// A stack of its own: the usual crash of a parser is the end of the stack.
void catch_crashes() {
  static std::vector<char> stack(1 << 16);
  const stack_t alternative{stack.data(), 0, stack.size()};
  ::sigaltstack(&alternative, nullptr);
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE}) {
    struct sigaction action {};
    action.sa_handler = name_the_input;
    action.sa_flags = SA_ONSTACK | SA_RESETHAND;
    ::sigaction(signal, &action, nullptr);
  }
}

class Replay : public ::testing::TestWithParam<Target> {};

TEST_P(Replay, EveryKeptInputIsHandled) {
  catch_crashes();
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(TROUPE_SOURCE_DIR) / "tests/fuzz/corpus" / GetParam().name)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_GE(files.size(), 10u) << "the corpus is kept beside the targets";
  for (const auto& file : files) {
    current = file.string();
    const auto input = troupe::read_file(file);
    ASSERT_TRUE(input.has_value());
    EXPECT_EQ(GetParam().run(reinterpret_cast<const std::uint8_t*>(input->data()), input->size()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Replay, ::testing::ValuesIn(kTargets), [](const auto& row) { return std::string(row.param.name); });

}  // namespace
