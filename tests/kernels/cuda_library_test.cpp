// The GPU library: what a CPU machine can check of it, and how its absence is told.
#include "kernels/cuda_library.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace troupe::kernels {
namespace {

TEST(CudaLibrary, AbsenceIsAnErrorThatNamesTheFile) {
  const auto library = open_cuda_library("/nowhere/libtroupe_cuda.so");
  ASSERT_FALSE(library.has_value());
  EXPECT_EQ(library.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(library.error().message.find("/nowhere/libtroupe_cuda.so"), std::string::npos) << library.error().message;
}

TEST(CudaLibrary, AnotherLibraryIsNotMistakenForIt) {
  const auto library = open_cuda_library("libm.so.6");
  ASSERT_FALSE(library.has_value());
  EXPECT_EQ(library.error().code, ErrorCode::kCorrupt);
}

TEST(CudaLibrary, AStreamWithoutTheLibraryIsAnErrorNotACrash) {
  if (cuda_library().has_value() && cuda_library()->device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  float x = 1;
  int not_a_stream = 0;
  RmsNormForward a;
  a.x = a.weight = &x;
  a.y = &x;
  a.rows = a.cols = 1;
  const Status status = rmsnorm_forward(a, Stream{&not_a_stream});
  ASSERT_FALSE(status.has_value());
  EXPECT_FALSE(status.error().message.empty());
}

#ifdef TROUPE_CUDA_LIBRARY

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  for (std::size_t n; pipe != nullptr && (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    text.append(buffer.data(), n);
  if (pipe != nullptr) pclose(pipe);
  return text;
}

/// Names of dynamic symbols, versions cut off; `what` are nm's filters.
std::set<std::string> symbols(const std::string& path, const std::string& what) {
  std::istringstream lines(output_of("nm -D " + what + " '" + path + "' 2>/dev/null"));
  std::set<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    std::string name = line.substr(line.rfind(' ') + 1);
    names.insert(name.substr(0, name.find('@')));
  }
  return names;
}

TEST(CudaLibraryFile, ExportsTheEntryPointsAndNothingElse) {
  const auto exported = symbols(TROUPE_CUDA_LIBRARY, "--defined-only");
  std::set<std::string> wanted = {"troupe_cuda_abi_version", "troupe_cuda_device_count", "troupe_cuda_nccl_version",
                                  "troupe_cuda_torch_devices"};
#define TROUPE_ENTRY(name, Args) wanted.insert("troupe_cuda_" #name);
  TROUPE_CUDA_KERNELS(TROUPE_ENTRY)
  TROUPE_CUDA_CALLS(TROUPE_ENTRY)
  TROUPE_CUDA_MEMORY(TROUPE_ENTRY)
#undef TROUPE_ENTRY
  EXPECT_EQ(exported, wanted);
}

TEST(CudaLibraryFile, NamesTheLibrariesItStandsOn) {
  const std::string needed = output_of(std::string("readelf -d '") + TROUPE_CUDA_LIBRARY + "'");
  for (const char* library : {"libcudart.so.13", "libcublasLt.so.13", "libnccl.so.2", "libc10_cuda.so", "libtorch_cuda.so"}) {
    EXPECT_NE(needed.find(std::string("[") + library + "]"), std::string::npos) << library;
  }
}

TEST(CudaLibraryFile, EverySymbolItLacksIsInALibraryOfThisMachine) {
  std::set<std::string> provided;
  std::istringstream libraries(TROUPE_CUDA_PROVIDERS);
  for (std::string path; std::getline(libraries, path, ':');) provided.merge(symbols(path, "--defined-only"));
  const auto lacking = symbols(TROUPE_CUDA_LIBRARY, "--undefined-only");
  EXPECT_TRUE(lacking.contains("ncclGetVersion"));
  for (const std::string& name : lacking) {
    const bool of_compiler = name.starts_with("__cxa") || name.starts_with("_ITM_") ||
                             name.starts_with("__gmon_start__") || name.starts_with("__gxx_personality") ||
                             name.starts_with("_Unwind");
    EXPECT_TRUE(of_compiler || provided.contains(name)) << name << " is in none of the libraries it is linked to";
  }
}

TEST(CudaLibraryFile, HoldsCodeForHopperAndBlackwell) {
  std::ifstream in(TROUPE_CUDA_LIBRARY, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_NE(bytes.find(".nv_fatbin"), std::string::npos);
  for (const char* device : {"sm_90a", "sm_100a"}) EXPECT_NE(bytes.find(device), std::string::npos) << device;
}

TEST(CudaLibraryFile, OpensOrSaysWhatThisMachineLacks) {
  const auto library = open_cuda_library(TROUPE_CUDA_LIBRARY);
  if (library.has_value()) {
    EXPECT_EQ(library->abi_version(), kCudaAbiVersion);
    EXPECT_GE(library->nccl_version(), 20000);
  } else {
    EXPECT_EQ(library.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(library.error().message.find(".so"), std::string::npos) << library.error().message;
  }
}

#endif

}  // namespace
}  // namespace troupe::kernels
