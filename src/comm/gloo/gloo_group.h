/// @file
/// Collectives over TCP: c10d's Gloo process group, from LibTorch.
#pragma once

#include <memory>

#include "comm/collectives.h"

namespace troupe::comm {

/// Builds the group: every rank calls this with a store that all of them share and that nobody used before. Blocking, at most `deadline`.
/// Needs at least two ranks. The connections are neither authenticated nor encrypted.
/// Errors: kInvalidArgument; kUnavailable naming the group and this rank when the others did not come, or the store gave up.
/// Determinism: all_reduce is Gloo's ring: each part of the values is summed in one order of the ranks, by one of them, and handed round.
/// Cost: all_reduce sends and receives 2 (R - 1) / R of the bytes.
[[nodiscard]] Result<std::unique_ptr<Collectives>> connect_gloo(std::shared_ptr<Store> store, const GroupOptions& options);

} // namespace troupe::comm
