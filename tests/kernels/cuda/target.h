/// @file
/// Where the tests of the CUDA kernels run: on the CPU, once per order of the emulator, or on a device. The same bodies
/// are built into cuda_emulated_test (emulated.cpp) and cuda_device_test (device.cpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda_library.h"
#include "tests/kernels/support.h"

namespace troupe::kernels::testing {

/// A way of running; the value is the emulator's order, and means nothing on a device.
enum class Way { kAscending, kDescending, kShuffled, kDevice };

/// What emulated.cpp and device.cpp implement.
struct Target {
  const CudaLibrary* library = nullptr;
  std::string absent;  ///< Why there is none.
  void* (*allocate)(std::size_t bytes) = nullptr;
  void (*release)(void*) = nullptr;
  void (*write)(void* device, const void* host, std::size_t bytes) = nullptr;
  void (*read)(void* host, const void* device, std::size_t bytes) = nullptr;  ///< After all that was enqueued.
  void* stream = nullptr;
};
const Target& target();
std::vector<Way> ways();
void choose(Way way);

/// Device memory of exactly the size of what it holds.
template <class T>
class On {
 public:
  explicit On(const std::vector<T>& host) : size_(host.size()), memory_(target().allocate(size_ == 0 ? 1 : bytes())) {
    target().write(memory_, host.data(), bytes());
  }
  ~On() { target().release(memory_); }
  On(const On&) = delete;
  On& operator=(const On&) = delete;
  [[nodiscard]] T* get() const { return static_cast<T*>(memory_); }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> host(size_);
    target().read(host.data(), memory_, bytes());
    return host;
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return size_ * sizeof(T); }
  std::size_t size_;
  void* memory_;
};

/// TEST_P(CudaKernels, ...): `run(&CudaLibrary::rope, args)` on every way.
class CudaKernels : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (target().library == nullptr) GTEST_SKIP() << target().absent;
    choose(GetParam());
  }
  template <class Args>
  void run(const char* (*CudaLibrary::*entry)(const Args*, void*), const Args& args) {
    const char* refused = (target().library->*entry)(&args, target().stream);
    ASSERT_EQ(refused, nullptr) << refused;
  }
};

inline std::string name_of(const ::testing::TestParamInfo<Way>& info) {
  constexpr const char* kNames[] = {"ascending", "descending", "shuffled", "device"};
  return kNames[static_cast<int>(info.param)];
}

}  // namespace troupe::kernels::testing

/// Once per test file, in namespace troupe::kernels.
#define TROUPE_ON_ALL_WAYS(Fixture) \
  INSTANTIATE_TEST_SUITE_P(On, Fixture, ::testing::ValuesIn(testing::ways()), testing::name_of)
