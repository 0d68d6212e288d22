#include "kernels/team.h"

#include <immintrin.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>

#include "kernels/cpu/parallel.h"
#include "kernels/isa.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace troupe::kernels {

#ifdef _OPENMP

namespace {

constexpr int kSpins = 2000;  // 0.1 ms or so: longer than from one kernel of a pass to the next

/// Waits a moment; gives the core away when it has been long.
void relax(int& spins) {
  if (++spins < kSpins) {
    _mm_pause();
  } else {
    std::this_thread::yield();
  }
}

}  // namespace

/// One job at a time. A part is claimed by whoever is there first, so a thread that is late holds nobody up. The ticket
/// names job, parts and next part in one word: a claim cannot be of another job than the one its parts belong to.
class Team {
 public:
  explicit Team(int threads) : threads_(threads) {}

  [[nodiscard]] int threads() const { return threads_; }
  [[nodiscard]] bool inside() const { return inside_; }

  /// By the thread that opened the team.
  void run(int parts, void (*body)(void*, int), void* context) {
    inside_ = true;
    body_ = body;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(++job_ << 32 | static_cast<std::uint64_t>(parts) << 16, std::memory_order_release);
    while (take_part()) {
    }
    for (int spins = 0; done_.load(std::memory_order_acquire) != parts;) relax(spins);
    inside_ = false;
  }

  /// By the others, until close().
  void serve() {
    for (int spins = 0; !closed_.load(std::memory_order_acquire);) {
      if (take_part()) {
        spins = 0;
      } else {
        relax(spins);
      }
    }
  }

  void close() { closed_.store(true, std::memory_order_release); }

 private:
  bool take_part() {
    std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (;;) {
      const auto next = static_cast<int>(ticket & 0xffff);
      const auto parts = static_cast<int>(ticket >> 16 & 0xffff);
      if (next >= parts) return false;
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acquire)) continue;
      body_(context_, next);
      done_.fetch_add(1, std::memory_order_release);
      return true;
    }
  }

  alignas(64) std::atomic<std::uint64_t> ticket_{0};  // job << 32 | parts << 16 | next part
  void (*body_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> closed_{false};
  alignas(64) std::atomic<int> done_{0};
  std::uint64_t job_ = 0;
  int threads_;
  bool inside_ = false;
};

namespace {

thread_local Team* open_team = nullptr;  // of the thread that opened it

}  // namespace

int team_threads() { return open_team == nullptr || open_team->inside() ? 0 : open_team->threads(); }

void run_in_team(int parts, void (*body)(void*, int), void* context) { open_team->run(parts, body, context); }

void with_team(void (*body)(void*), void* context) {
  const int threads = omp_get_max_threads();
  if (threads == 1 || omp_in_parallel() != 0) {
    body(context);
    return;
  }
  Team team(threads);
  std::exception_ptr thrown;
#pragma omp parallel num_threads(threads)
  {
    if (omp_get_thread_num() == 0) {
      open_team = &team;
      try {
        body(context);
      } catch (...) {
        thrown = std::current_exception();
      }
      open_team = nullptr;
      team.close();
    } else {
      team.serve();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
}

#else

int team_threads() { return 0; }

void with_team(void (*body)(void*), void* context) { body(context); }

#endif

}  // namespace troupe::kernels
