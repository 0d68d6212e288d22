/// @file
/// Operations that all ranks of a training mesh make together. The interface; comm/gloo has the one over TCP.
///
/// Every rank calls the same operations in the same order, from one thread. An operation ends within the group's deadline: with its result,
/// or with an error that names it, its number and the ranks. After the first error the group is broken: every further operation fails at once,
/// on this rank and, because its connections are closed, on all others. A broken group is never mended; a new one is built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace troupe::comm {

/// Keys and values that every rank of a group sees: how ranks find each other. Thread-safe.
class Store {
 public:
  virtual ~Store() = default;
  [[nodiscard]] virtual Status set(const std::string& key, const std::string& value) = 0;
  /// Waits until the key is there. Errors: kTimeout after `deadline`; whatever says that the group will not come about.
  [[nodiscard]] virtual Result<std::string> get(const std::string& key, Duration deadline) = 0;
};

struct GroupOptions {
  std::string name;                  ///< Of the group, for errors: "mesh 3".
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::string address = "127.0.0.1"; ///< Of this machine; nothing else is bound.
  Duration deadline = std::chrono::seconds(30); ///< Of each operation, and of the building of the group.
};

class Collectives {
 public:
  virtual ~Collectives() = default;
  [[nodiscard]] virtual std::uint32_t rank() const = 0;
  [[nodiscard]] virtual std::uint32_t ranks() const = 0;

  /// Sums in place; `values` has the same length everywhere. Lengths of 0 are fine.
  /// Determinism: the same bits on every rank, and in every run with as many ranks and values. The order in which the ranks' values are
  /// added depends on the place in `values`, never on time.
  [[nodiscard]] virtual Status all_reduce(std::span<float> values) = 0;
  [[nodiscard]] virtual Status all_reduce(std::span<double> values) = 0;
  /// Rank `root`'s bytes, everywhere.
  [[nodiscard]] virtual Status broadcast(std::span<std::byte> bytes, std::uint32_t root) = 0;
  /// Every rank's blob, by rank. Lengths may differ. For small things: each rank holds all of them.
  [[nodiscard]] virtual Result<std::vector<std::string>> all_gather(std::string_view blob) = 0;
  /// Returns when every rank has come here.
  [[nodiscard]] virtual Status barrier() = 0;

  /// Whether an operation has failed: no further one can succeed.
  [[nodiscard]] virtual bool broken() const = 0;
  /// Breaks the group: whoever waits in an operation gets an error with this reason. From any thread; does not wait.
  virtual void abort(const std::string& reason) = 0;
};

/// Sums many tensors over all ranks as one stream of numbers, cut into buckets of `bucket` values wherever they end: a tensor may be larger
/// than a bucket, many may share one. Every rank gives tensors of the same sizes in the same order. Memory: one bucket.
/// Errors: kInvalidArgument for an empty bucket; those of all_reduce, after which the tensors are worthless.
[[nodiscard]] Status all_reduce_in_buckets(Collectives& group, std::span<const std::span<float>> tensors, std::size_t bucket);

/// One of the things that must be equal on all ranks: a tensor's name and a digest of its bytes.
struct NamedDigest {
  std::string name;
  std::uint64_t digest = 0;
};
/// Errors: kCorrupt naming the first rank and tensor that differ from rank 0; those of all_gather.
[[nodiscard]] Status expect_equal(Collectives& group, std::span<const NamedDigest> digests);

} // namespace troupe::comm
