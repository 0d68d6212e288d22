/// @file
/// Memory of a run's processes: proportional set size, so that shared pages count once.
#pragma once

#include <sys/types.h>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"

namespace troupe::observe {

/// Bytes of the "Pss:" line of a smaps_rollup text. Errors: kCorrupt when there is none.
[[nodiscard]] Result<std::uint64_t> parse_pss(std::string_view smaps_rollup);
/// PSS of one process. Errors: kNotFound when it is gone, kUnavailable when it may not be read.
[[nodiscard]] Result<std::uint64_t> process_pss(pid_t pid);

/// Samples a set of processes and keeps the peak of their sum. Cost: about 1 ms per GB of mapped memory and process.
class MemorySampler {
 public:
  /// The sum now, in bytes. Processes that are gone count 0.
  std::uint64_t sample(std::span<const pid_t> pids);
  [[nodiscard]] std::uint64_t peak_bytes() const { return peak_; }

 private:
  std::uint64_t peak_ = 0;
};

}  // namespace troupe::observe
