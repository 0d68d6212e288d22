#include "emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#error "the switch between fibers is written for x86-64, as the CPU kernels are"
#endif

dim3 threadIdx, blockIdx, blockDim, gridDim;

/// Saves what a call must preserve on this stack, its end in *save, and goes on where the stack `load` was left.
extern "C" void troupe_emulator_switch(void** save, void* load);
asm(R"(
.text
.globl troupe_emulator_switch
.type troupe_emulator_switch, @function
troupe_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size troupe_emulator_switch, .-troupe_emulator_switch
)");

namespace emulator {
namespace {

// Limits of compute capability 9.0 (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
constexpr std::uint64_t kMaxThreads = 1024;
constexpr std::uint64_t kMaxGridX = 2147483647, kMaxGridYZ = 65535, kMaxBlockZ = 64;
constexpr std::size_t kMaxNamedShared = 48 * 1024, kMaxShared = 227 * 1024;
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = 256 * 1024;
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif
constexpr std::size_t kGuardBytes = 64;
constexpr unsigned char kGuard = 0xA5, kPoison = 0xFF;  // 0xFFFFFFFF is a NaN
constexpr unsigned kWarp = 32;

enum class State { kReady, kAtBarrier, kAtWarp, kEnded };

struct Fiber {
  void* stack_pointer = nullptr;
  void* fake_stack = nullptr;  // of the address sanitizer
  State state = State::kReady;
  Site at;
  dim3 index;
};

/// What the lanes of a warp brought. Two buffers: a lane may bring the next thing before the last one has read this.
struct Warp {
  unsigned char lanes[2][kWarp * kLaneBytes];
  unsigned arrived = 0, turn = 0;
  Site at;
};

/// Memory of exactly the wanted size, so that the address sanitizer sees a step behind it; and a guard for without.
struct SharedMemory {
  explicit SharedMemory(std::size_t wanted) : bytes(wanted), memory(new unsigned char[wanted + guard()]) {
    std::memset(memory.get(), kPoison, bytes);
    std::memset(memory.get() + bytes, kGuard, guard());
  }
  static std::size_t guard() {
#if defined(__SANITIZE_ADDRESS__)
    return 0;
#else
    return kGuardBytes;
#endif
  }
  [[nodiscard]] bool whole() const {
    return std::all_of(memory.get() + bytes, memory.get() + bytes + guard(), [](auto b) { return b == kGuard; });
  }
  std::size_t bytes;
  std::unique_ptr<unsigned char[]> memory;
};

std::string text_of(const dim3& d) {
  return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
}
std::string text_of(const Site& at) {
  const std::string file = at.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(at.line());
}
bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

class Machine {
 public:
  Order order = Order::kAscending;
  bool expects_device_addresses = false;

  const char* launch(const Launch& wanted, void (*body)(void*), void* context) {
    error_ = refused(wanted);
    if (!error_.empty()) return error_.c_str();
    body_ = body;
    context_ = context;
    gridDim = wanted.grid;
    blockDim = wanted.block;
    prepare(wanted.block);
    const std::uint64_t blocks = std::uint64_t{wanted.grid.x} * wanted.grid.y * wanted.grid.z;
    for (std::uint64_t i = 0; i < blocks && error_.empty(); ++i) {
      const std::uint64_t b = order == Order::kAscending ? i : blocks - 1 - i;
      blockIdx = {static_cast<unsigned>(b % wanted.grid.x), static_cast<unsigned>(b / wanted.grid.x % wanted.grid.y),
                  static_cast<unsigned>(b / wanted.grid.x / wanted.grid.y)};
      run_block(wanted.dynamic_bytes);
    }
    return error_.empty() ? nullptr : error_.c_str();
  }

  void barrier(Site at) {
    if (waiting_ > 0 && !same(barrier_at_, at))
      stop([&] { return "threads of a block wait at " + text_of(barrier_at_) + " and at " + text_of(at); });
    barrier_at_ = at;
    if (++waiting_ == fibers_.size()) {
      waiting_ = 0;
      for (Fiber& f : fibers_) f.state = State::kReady;
      return;
    }
    wait(State::kAtBarrier, at);
  }

  const unsigned char* exchange(unsigned mask, const void* mine, std::size_t bytes, Site at) {
    if (mask != ~0u) stop([&] { return text_of(at) + ": only whole warps are supported"; });
    if (fibers_.size() % kWarp != 0)
      stop([&] { return text_of(at) + ": the mask names lanes that the last warp does not have"; });
    Warp& warp = warps_[current_ / kWarp];
    if (warp.arrived > 0 && !same(warp.at, at))
      stop([&] { return "lanes of a warp wait at " + text_of(warp.at) + " and at " + text_of(at); });
    warp.at = at;
    unsigned char* buffer = warp.lanes[warp.turn];
    if (bytes > 0) std::memcpy(buffer + current_ % kWarp * kLaneBytes, mine, bytes);
    if (++warp.arrived < kWarp) {
      wait(State::kAtWarp, at);
      return buffer;
    }
    warp.arrived = 0;
    warp.turn ^= 1u;
    for (std::size_t i = current_ / kWarp * kWarp; i < (current_ / kWarp + 1) * kWarp; ++i)
      fibers_[i].state = State::kReady;
    return buffer;
  }

  void* shared_array(const void* key, std::size_t bytes) {
    const auto found = shared_.find(key);
    if (found != shared_.end()) return found->second.memory.get();
    std::size_t named = bytes;
    for (const auto& [other, memory] : shared_) named += memory.bytes;
    if (named > kMaxNamedShared || named + dynamic_->bytes > kMaxShared)
      stop([&] {
        return "the block uses " + std::to_string(named) + " bytes of named and " + std::to_string(dynamic_->bytes) +
               " of dynamic shared memory; 49152 and together 232448 are allowed";
      });
    return shared_.emplace(key, bytes).first->second.memory.get();
  }
  [[nodiscard]] void* dynamic_shared() const { return dynamic_->memory.get(); }
  [[nodiscard]] unsigned lane() const { return static_cast<unsigned>(current_ % kWarp); }

 private:
  static std::string refused(const Launch& l) {
    const std::uint64_t threads = std::uint64_t{l.block.x} * l.block.y * l.block.z;
    if (threads == 0 || l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0) return "the launch is empty";
    if (threads > kMaxThreads || l.block.z > kMaxBlockZ)
      return std::to_string(threads) + " threads in a block " + text_of(l.block) + ", 1024 are allowed";
    if (l.grid.x > kMaxGridX || l.grid.y > kMaxGridYZ || l.grid.z > kMaxGridYZ) return "a grid of " + text_of(l.grid);
    if (l.dynamic_bytes > kMaxShared)
      return std::to_string(l.dynamic_bytes) + " bytes of dynamic shared memory, 232448 are allowed";
    return "";
  }

  void prepare(const dim3& block) {
    const std::size_t threads = std::size_t{block.x} * block.y * block.z;
    fibers_.assign(threads, {});
    warps_.assign((threads + kWarp - 1) / kWarp, {});
    while (stacks_.size() < threads) {
      void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) std::abort();
      stacks_.push_back(static_cast<unsigned char*>(memory));
    }
    turns_.resize(threads);
    std::iota(turns_.begin(), turns_.end(), std::size_t{0});
    if (order == Order::kDescending) std::reverse(turns_.begin(), turns_.end());
  }

  void start(std::size_t i) {
    unsigned char* stack = stacks_[i];
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, kStackBytes);
#endif
    std::memset(stack, kGuard, kGuardBytes);
    auto* top = reinterpret_cast<void**>(stack + kStackBytes);
    top[-1] = nullptr;
    top[-2] = reinterpret_cast<void*>(&Machine::enter);
    const auto x = static_cast<unsigned>(i);
    fibers_[i] = {top - 8, nullptr, State::kReady, {},
                  {x % blockDim.x, x / blockDim.x % blockDim.y, x / blockDim.x / blockDim.y}};
  }

  void run_block(std::size_t dynamic_bytes) {
    shared_.clear();
    dynamic_ = std::make_unique<SharedMemory>(dynamic_bytes);
    waiting_ = 0;
    for (Warp& w : warps_) w = {};
    for (std::size_t i = 0; i < fibers_.size(); ++i) start(i);
    while (error_.empty() && (order == Order::kShuffled ? step_all() : run_warps())) {
    }
    if (error_.empty()) error_ = what_hangs();
    if (error_.empty()) error_ = what_was_written();
    if (!error_.empty()) error_ = "block " + text_of(blockIdx) + ": " + error_;
  }

  /// Resumes whoever of turns_[begin, end) is ready. False: nobody was.
  bool step(std::size_t begin, std::size_t end) {
    bool moved = false;
    for (std::size_t i = begin; i < end && error_.empty(); ++i) {
      if (fibers_[turns_[i]].state != State::kReady) continue;
      resume(turns_[i]);
      moved = true;
    }
    return moved;
  }
  bool step_all() {
    std::shuffle(turns_.begin(), turns_.end(), random_);
    return step(0, turns_.size());
  }
  /// One warp after the other runs until the block's next barrier: far ahead of the warps behind it.
  bool run_warps() {
    bool moved = false;
    for (std::size_t begin = 0; begin < turns_.size(); begin += kWarp) {
      const std::size_t end = std::min(begin + kWarp, turns_.size());
      while (step(begin, end)) moved = true;
    }
    return moved;
  }

  [[nodiscard]] std::string what_hangs() const {
    const auto waits = std::find_if(fibers_.begin(), fibers_.end(), [](const Fiber& f) { return f.state != State::kEnded; });
    if (waits == fibers_.end()) return "";
    const std::string what = waits->state == State::kAtBarrier ? "a barrier" : "an operation of its warp";
    return "thread " + text_of(waits->index) + " waits for ever at " + what + ", " + text_of(waits->at) +
           ", which others never reach";
  }

  [[nodiscard]] std::string what_was_written() const {
    for (const auto& [key, memory] : shared_)
      if (!memory.whole()) return "memory behind a shared array of " + std::to_string(memory.bytes) + " bytes was written";
    if (!dynamic_->whole()) return "memory behind the dynamic shared memory was written";
    for (std::size_t i = 0; i < fibers_.size(); ++i)
      if (!std::all_of(stacks_[i], stacks_[i] + kGuardBytes, [](auto b) { return b == kGuard; }))
        return "a thread's stack overflowed";
    return "";
  }

  void resume(std::size_t i) {
    current_ = i;
    threadIdx = fibers_[i].index;
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stacks_[i], kStackBytes);
    troupe_emulator_switch(&scheduler_, fibers_[i].stack_pointer);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    troupe_emulator_switch(&scheduler_, fibers_[i].stack_pointer);
#endif
  }

  /// Back to the scheduler, until it resumes this fiber.
  void leave() {
    Fiber& fiber = fibers_[current_];
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fiber.state == State::kEnded ? nullptr : &fiber.fake_stack, scheduler_stack_, scheduler_bytes_);
    troupe_emulator_switch(&fiber.stack_pointer, scheduler_);
    __sanitizer_finish_switch_fiber(fibers_[current_].fake_stack, &scheduler_stack_, &scheduler_bytes_);
#else
    troupe_emulator_switch(&fiber.stack_pointer, scheduler_);
#endif
  }

  void wait(State state, Site at) {
    fibers_[current_].state = state;
    fibers_[current_].at = at;
    leave();
  }

  /// The launch ends here; no fiber of it goes on, and what is on their stacks is not destroyed: no text may be.
  template <class Text>
  [[noreturn]] void stop(const Text& why) {
    error_ = why();
    fibers_[current_].state = State::kEnded;
    leave();
    std::abort();
  }

  static void enter();

  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<unsigned char*> stacks_;  // kept for the life of the process
  std::vector<std::size_t> turns_;
  std::map<const void*, SharedMemory> shared_;
  std::unique_ptr<SharedMemory> dynamic_;
  std::mt19937 random_{1};
  std::size_t current_ = 0, waiting_ = 0;
  Site barrier_at_;
  void* scheduler_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_bytes_ = 0;
  std::string error_;
};

Machine& machine() {
  static auto* const kept = new Machine;  // its fibers' stacks must outlive everything
  return *kept;
}

void Machine::enter() {
  Machine& m = machine();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_stack_, &m.scheduler_bytes_);
#endif
  m.body_(m.context_);
  m.fibers_[m.current_].state = State::kEnded;
  m.leave();
  std::abort();
}

float from_bf16(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }

}  // namespace

void expect_device_addresses() { machine().expects_device_addresses = true; }

const char* check_addresses(const void* words, std::size_t bytes) {
  if (!machine().expects_device_addresses) return nullptr;
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes; at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, static_cast<const char*>(words) + at, sizeof word);
    if (may_be_host_address(word)) return "an address of host memory, which a device cannot read";
  }
  return nullptr;
}

void set_order(Order order) { machine().order = order; }
const char* run(const Launch& launch, void (*body)(void*), void* context) {
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  return machine().launch(launch, body, context);
}
void barrier(Site at) { machine().barrier(at); }
void* shared_array(const void* key, std::size_t bytes) { return machine().shared_array(key, bytes); }
void* dynamic_shared() { return machine().dynamic_shared(); }
const unsigned char* exchange(unsigned mask, const void* mine, std::size_t bytes, Site at) {
  return machine().exchange(mask, mine, bytes, at);
}
unsigned lane() { return machine().lane(); }

void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], Site at) {
  struct Fragment {
    std::uint32_t a[4], b[2];
  } mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const unsigned char* all = exchange(~0u, &mine, sizeof mine, at);
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane() / 4 + i / 2 * 8;
    const unsigned column = lane() % 4 * 2 + i % 2;
    for (unsigned k = 0; k < 16; ++k) {  // lane 4 r + c holds k = 2c, 2c + 1 (low, high half), and the same + 8
      const unsigned half = k % 2 * 16;
      const auto of_a = from_lane<Fragment>(all, row % 8 * 4 + k % 8 / 2).a[row / 8 + k / 8 * 2];
      const auto of_b = from_lane<Fragment>(all, column * 4 + k % 8 / 2).b[k / 8];
      d[i] = std::fma(from_bf16(of_a >> half & 0xFFFFu), from_bf16(of_b >> half & 0xFFFFu), d[i]);
    }
  }
}

}  // namespace emulator
