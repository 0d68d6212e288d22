/// @file
/// A team of threads that stays awake through many small kernel calls.
#pragma once

#include <type_traits>

namespace troupe::kernels {

/// Runs body(context) on the calling thread. While it runs, up to max_threads() - 1 more threads stand by and take
/// parts of the kernels it calls, however small: handing out a part costs a fraction of a microsecond, where a parallel
/// region of its own would cost one and, after a pause, a wake-up. For a pass over many layers of a small batch.
///
/// Threads: those of the OpenMP pool, which LibTorch shares; its operations inside `body` run on one thread. Standing
///   by is spinning, then yielding: open a team for work, never around waiting.
/// Determinism: as for every kernel, threads change no bit. Errors: what `body` throws is thrown again here.
/// Inside another team or parallel region, and with one thread, this is a plain call.
void with_team(void (*body)(void*), void* context);

template <class F>
void with_team(F&& body) {
  using Body = std::remove_reference_t<F>;
  with_team([](void* f) { (*static_cast<Body*>(f))(); }, const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace troupe::kernels
