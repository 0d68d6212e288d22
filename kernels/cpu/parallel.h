/// @file
/// Threads for the CPU kernels: one OpenMP pool, shared with LibTorch; inside a team (team.h), its threads. Internal to
/// kernels/.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace troupe::kernels {

/// Threads worth starting for `operations` scalar operations: 1 below a threshold, inside another parallel region, and
/// in builds without OpenMP.
int threads_for(double operations);

/// Threads of the team that the calling thread has open and is not computing for right now; 0: none.
int team_threads();
/// run_parts on that team; at most 65535 parts.
void run_in_team(int parts, void (*body)(void* context, int part), void* context);

/// Calls body(context, part) once for every part in [0, parts), on up to `parts` threads.
void run_parts(int parts, void (*body)(void* context, int part), void* context);

template <class F>
void run_parts(int parts, F&& body) {
  if (parts == 1) {
    body(0);
    return;
  }
  using Body = std::remove_reference_t<F>;
  run_parts(
      parts, [](void* f, int part) { (*static_cast<Body*>(f))(part); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

/// Splits [0, n) into `threads` ranges whose bounds are multiples of `grain` and calls body(begin, end) for each.
template <class F>
void run_ranges(std::int64_t n, std::int64_t grain, int threads, F&& body) {
  const std::int64_t units = (n + grain - 1) / grain;
  if (units < threads) threads = static_cast<int>(units);
  if (threads <= 1) {
    if (n > 0) body(std::int64_t{0}, n);
    return;
  }
  auto part = [&](int t) {
    const std::int64_t begin = units * t / threads * grain;
    const std::int64_t end = units * (t + 1) / threads * grain;
    body(begin, end < n ? end : n);
  };
  run_parts(threads, part);
}

/// Calls body(i) for i in [0, n), taken in order by whichever thread is free.
template <class F>
void run_tasks(std::size_t n, int threads, F&& body) {
  std::atomic<std::size_t> next{0};
  run_parts(threads, [&](int) {
    for (std::size_t i = next.fetch_add(1, std::memory_order_relaxed); i < n;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      body(i);
    }
  });
}

/// run_ranges with up to four ranges a thread, of `least` or more, taken by whoever is free: for long work, on cores
/// that others use too.
template <class F>
void run_shared_ranges(std::int64_t n, std::int64_t grain, int threads, F&& body, std::int64_t least = 1) {
  const std::int64_t units = (n + grain - 1) / grain;
  const std::int64_t rounds = n / (least * threads);
  const std::int64_t wanted = threads * (rounds < 1 ? 1 : (rounds < 4 ? rounds : 4));
  const std::int64_t ranges = units < wanted ? units : wanted;
  if (threads <= 1 || ranges <= 1) {
    if (n > 0) body(std::int64_t{0}, n);
    return;
  }
  run_tasks(static_cast<std::size_t>(ranges), threads, [&](std::size_t i) {
    const auto t = static_cast<std::int64_t>(i);
    const std::int64_t end = units * (t + 1) / ranges * grain;
    body(units * t / ranges * grain, end < n ? end : n);
  });
}

/// What a thread keeps between calls. Two slots that are in use at the same time have different names.
enum class Scratch { kRows, kTask, kShared, kPanels, kCount };

/// At least `floats` floats, 64-byte aligned, of the calling thread; valid until its next call for the same slot.
/// Contents are unspecified.
float* scratch(Scratch slot, std::int64_t floats);

}  // namespace troupe::kernels
