/// @file
/// Which instructions the CPU kernels use. The choice is made once, by cpuid, and never changes a bit of a result:
/// every variant computes on 16-float vectors with the same operations in the same order.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"

namespace troupe::kernels {

/// The variants that are compiled in, worst first. The last two differ from kAvx512 in products of bfloat16 only.
enum class Isa { kAvx2, kAvx512, kAvx512Bf16, kAmx };

/// "AVX2+FMA", "AVX-512", "AVX-512+BF16" or "AMX-BF16".
[[nodiscard]] std::string_view to_string(Isa isa);

/// Fails with kUnavailable, in words for the user, where this CPU runs none of the variants. Processes that compute
/// call it at start: a kernel itself aborts on such a CPU.
[[nodiscard]] Status check_cpu();

/// The variants this CPU can run, worst first; empty where check_cpu fails.
[[nodiscard]] std::vector<Isa> supported_isas();

/// The variant in use: the best supported one, unless set_isa chose another.
[[nodiscard]] Isa active_isa();

/// Chooses a supported variant for the whole process; for tests and benchmarks. Not while a kernel runs.
void set_isa(Isa isa);

/// Upper bound of the threads one kernel call uses, this thread's OpenMP setting (at::set_num_threads sets the same).
/// Small work runs on the calling thread whatever the bound is. The number of threads never changes a result.
[[nodiscard]] int max_threads();
void set_max_threads(int threads);

}  // namespace troupe::kernels
