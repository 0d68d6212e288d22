/// @file
/// What this machine can do at most: the kernels' figures are compared with it.
#pragma once

namespace troupe::bench {

/// Multiply-adds a second, in GFLOP/s: independent chains of vector FMA in registers, on `threads` threads.
[[nodiscard]] double peak_gflops(int threads);
/// Bytes a second, in GB/s: b[i] = s * a[i] + b[i] over arrays far beyond the caches, reads and writes counted.
[[nodiscard]] double peak_bandwidth(int threads);

}  // namespace troupe::bench
