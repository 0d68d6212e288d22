#include "kernels/cpu/parallel.h"

#include <cstdlib>
#include <memory>
#include <new>

#include "kernels/isa.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace troupe::kernels {
namespace {

/// Below this a region costs more than its second thread brings. A spinning team starts in about 1 us, in which one
/// core does some 100 000 operations; one whose cores are busy with other processes starts far later, so leave a
/// margin.
constexpr double kOperationsPerThread = 1e6;
constexpr double kOperationsPerThreadInTeam = 3e4;  // its threads are awake

struct Free {
  void operator()(float* p) const { std::free(p); }
};

struct Buffer {
  std::unique_ptr<float[], Free> floats;
  std::int64_t size = 0;
};

}  // namespace

#ifdef _OPENMP

int max_threads() { return omp_get_max_threads(); }

void set_max_threads(int threads) { omp_set_num_threads(threads); }

int threads_for(double operations) {
  const int team = team_threads();
  const int most = team > 0 ? team : omp_get_max_threads();
  const double each = team > 0 ? kOperationsPerThreadInTeam : kOperationsPerThread;
  if (most == 1 || operations < 2 * each || (team == 0 && omp_in_parallel() != 0)) return 1;
  const double worth = operations / each;
  return worth < most ? static_cast<int>(worth) : most;
}

void run_parts(int parts, void (*body)(void*, int), void* context) {
  if (team_threads() > 0) {
    run_in_team(parts, body, context);
    return;
  }
#pragma omp parallel num_threads(parts)
  {
    const int team = omp_get_num_threads();  // may be smaller than asked for
    for (int part = omp_get_thread_num(); part < parts; part += team) body(context, part);
  }
}

#else

int max_threads() { return 1; }

void set_max_threads(int) {}

int threads_for(double) { return 1; }

void run_parts(int parts, void (*body)(void*, int), void* context) {
  for (int part = 0; part < parts; ++part) body(context, part);
}

#endif

float* scratch(Scratch slot, std::int64_t floats) {
  thread_local Buffer buffers[static_cast<int>(Scratch::kCount)];
  Buffer& buffer = buffers[static_cast<int>(slot)];
  if (buffer.size < floats) {
    const std::int64_t wanted = (floats + floats / 4 + 15) / 16 * 16;
    auto* memory = static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>(wanted) * sizeof(float)));
    if (memory == nullptr) throw std::bad_alloc();
    buffer.floats.reset(memory);
    buffer.size = wanted;
  }
  return buffer.floats.get();
}

}  // namespace troupe::kernels
