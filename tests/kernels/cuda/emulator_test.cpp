// The emulator itself: each mistake it is there to catch, made on purpose.
#include <emulator.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

using emulator::Order;

template <class F>
std::string run(unsigned threads, F body, std::size_t dynamic_bytes = 0, unsigned blocks = 1) {
  const char* error = emulator::run({{blocks, 1, 1}, {threads, 1, 1}, dynamic_bytes},
                                    [](void* f) { (*static_cast<F*>(f))(); }, &body);
  return error == nullptr ? "" : error;
}

template <class F>
void in_all_orders(F body) {
  for (const Order order : {Order::kAscending, Order::kDescending, Order::kShuffled}) {
    emulator::set_order(order);
    body();
  }
  emulator::set_order(Order::kAscending);
}

TEST(Emulator, EveryThreadOfEveryBlockRunsOnce) {
  in_all_orders([] {
    std::vector<int> runs(6 * 40);
    const char* error = nullptr;
    auto body = [&] {
      const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      ++runs[thread + 40 * (blockIdx.x + gridDim.x * blockIdx.y)];
    };
    error = emulator::run({{3, 2, 1}, {5, 4, 2}, 0}, [](void* f) { (*static_cast<decltype(body)*>(f))(); }, &body);
    EXPECT_EQ(error, nullptr);
    for (const int n : runs) EXPECT_EQ(n, 1);
  });
}

TEST(Emulator, WarpsExchangeAndVote) {
  in_all_orders([] {
    std::vector<unsigned> sums(64), votes(64);
    EXPECT_EQ(run(64, [&] {
      unsigned value = threadIdx.x;
      for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(~0u, value, other);
      sums[threadIdx.x] = value + __shfl_sync(~0u, threadIdx.x, 3);
      votes[threadIdx.x] = __ballot_sync(~0u, threadIdx.x % 2 == 1);
    }), "");
    for (unsigned i = 0; i < 64; ++i) {
      EXPECT_EQ(sums[i], (i < 32 ? 496u : 1520u) + (i < 32 ? 3u : 35u));
      EXPECT_EQ(votes[i], 0xaaaaaaaau);
    }
  });
}

TEST(Emulator, AMissedBarrierIsAnError) {
  in_all_orders([] {
    const std::string error = run(64, [] {
      if (threadIdx.x != 5) __syncthreads();
    });
    EXPECT_NE(error.find("waits for ever at a barrier"), std::string::npos) << error;
  });
}

TEST(Emulator, DifferentBarriersAtOnceAreAnError) {
  in_all_orders([] {
    const std::string error = run(64, [] {
      if (threadIdx.x < 32)
        __syncthreads();
      else
        __syncthreads();
    });
    EXPECT_NE(error.find("wait at emulator_test.cpp"), std::string::npos) << error;
  });
}

TEST(Emulator, AWarpOperationWithoutAllLanesIsAnError) {
  in_all_orders([] {
    const std::string left = run(32, [] {
      if (threadIdx.x != 31) __shfl_xor_sync(~0u, 1, 1);
    });
    EXPECT_NE(left.find("operation of its warp"), std::string::npos) << left;
    const std::string half = run(48, [] { __syncwarp(); });
    EXPECT_NE(half.find("does not have"), std::string::npos) << half;
    const std::string some = run(32, [] { __shfl_xor_sync(0xffffu, 1, 1); });
    EXPECT_NE(some.find("whole warps"), std::string::npos) << some;
  });
}

TEST(Emulator, LimitsOfTheDeviceHold) {
  EXPECT_NE(run(1025, [] {}).find("1024 are allowed"), std::string::npos);
  EXPECT_NE(run(32, [] {}, 232449).find("232448 are allowed"), std::string::npos);
  EXPECT_EQ(run(1024, [] {}, 232448), "");
  EXPECT_NE(run(0, [] {}), "");
  EXPECT_NE(run(32, [] {
    TROUPE_SHARED(float, much, [12289]);
    much[0] = 1;
  }).find("49152"), std::string::npos);
  EXPECT_NE(emulator::run({{1, 65536, 1}, {1, 1, 1}, 0}, [](void*) {}, nullptr), nullptr);
}

TEST(Emulator, SharedMemoryBeginsAsNanInEveryBlock) {
  std::vector<float> seen(8);
  EXPECT_EQ(run(1, [&] {
    TROUPE_SHARED(float, memory, [4]);
    TROUPE_DYNAMIC_SHARED(float, dynamic);
    seen[2 * blockIdx.x] = memory[1];
    seen[2 * blockIdx.x + 1] = dynamic[3];
    memory[1] = dynamic[3] = 7;
  }, 16, 4), "");
  for (const float x : seen) EXPECT_TRUE(std::isnan(x));
}

#ifndef __SANITIZE_ADDRESS__  // which ends the process at the first of these
TEST(Emulator, WritingBehindSharedMemoryIsAnError) {
  const std::string named = run(1, [] {
    TROUPE_SHARED(float, memory, [4]);
    float* const behind = memory + 4;
    *behind = 1;
  });
  EXPECT_NE(named.find("behind a shared array of 16 bytes"), std::string::npos) << named;
  const std::string dynamic = run(1, [] {
    TROUPE_DYNAMIC_SHARED(float, memory);
    memory[2] = 1;
  }, 8);
  EXPECT_NE(dynamic.find("behind the dynamic shared memory"), std::string::npos) << dynamic;
}
#endif

TEST(Emulator, ARaceGivesDifferentResultsInDifferentOrders) {
  std::vector<float> results;
  in_all_orders([&] {
    float result = 0;
    EXPECT_EQ(run(64, [&] {
      TROUPE_SHARED(float, memory, [64]);
      memory[threadIdx.x] = static_cast<float>(threadIdx.x);
      // No barrier: a neighbour's number may not be there yet.
      const float other = memory[63 - threadIdx.x];
      if (threadIdx.x == 40 && other == other) result = 1;
    }), "");
    results.push_back(result);
  });
  EXPECT_NE(results[0], results[1]);
}

TEST(Emulator, AnOperationOfAWarpIsNoBarrierOfTheBlock) {
  std::vector<bool> there;
  in_all_orders([&] {
    bool seen = false;
    EXPECT_EQ(run(64, [&] {
      TROUPE_SHARED(float, memory, [64]);
      memory[threadIdx.x] = 1;
      for (int i = 0; i < 20; ++i) __syncwarp();
      if (threadIdx.x == 0) seen = memory[40] == memory[40];  // of the other warp
    }), "");
    there.push_back(seen);
  });
  EXPECT_FALSE(there[0]);
  EXPECT_TRUE(there[1]);
}

TEST(Emulator, AnErrorDoesNotSpoilTheNextLaunch) {
  EXPECT_NE(run(64, [] {
    if (threadIdx.x == 0) __syncthreads();
  }), "");
  int done = 0;
  EXPECT_EQ(run(64, [&] {
    __syncthreads();
    if (threadIdx.x == 63) ++done;
  }), "");
  EXPECT_EQ(done, 1);
}

}  // namespace
