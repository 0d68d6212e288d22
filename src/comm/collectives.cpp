#include "comm/collectives.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace troupe::comm {
namespace {

std::size_t total_of(std::span<const std::span<float>> tensors) {
  std::size_t total = 0;
  for (const auto& tensor : tensors) total += tensor.size();
  return total;
}

// Walks over the tensors as over one array.
class Stream {
 public:
  explicit Stream(std::span<const std::span<float>> tensors) : tensors_(tensors) {}

  /// Calls `part(values, at)` for the next `count` numbers; `at` counts from the first of them.
  template <class Part>
  void next(std::size_t count, const Part& part) {
    for (std::size_t at = 0; at < count;) {
      while (offset_ == tensors_[tensor_].size()) ++tensor_, offset_ = 0;
      const std::size_t n = std::min(count - at, tensors_[tensor_].size() - offset_);
      part(tensors_[tensor_].subspan(offset_, n), at);
      at += n;
      offset_ += n;
    }
  }

 private:
  std::span<const std::span<float>> tensors_;
  std::size_t tensor_ = 0, offset_ = 0;
};

} // namespace

Status all_reduce_in_buckets(Collectives& group, std::span<const std::span<float>> tensors, std::size_t bucket) {
  if (bucket == 0) return fail(ErrorCode::kInvalidArgument, "a bucket holds at least one value");
  std::size_t left = total_of(tensors);
  std::vector<float> staged(std::min(bucket, left));
  Stream in(tensors), out(tensors);
  while (left > 0) {
    const std::span<float> values(staged.data(), std::min(staged.size(), left));
    in.next(values.size(), [&](std::span<float> part, std::size_t at) { std::copy(part.begin(), part.end(), values.begin() + static_cast<std::ptrdiff_t>(at)); });
    TROUPE_TRY_STATUS(group.all_reduce(values));
    out.next(values.size(), [&](std::span<float> part, std::size_t at) { std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(at), part.size(), part.begin()); });
    left -= values.size();
  }
  return {};
}

Status expect_equal(Collectives& group, std::span<const NamedDigest> digests) {
  std::string mine;
  for (const NamedDigest& d : digests) {
    const std::uint64_t named[] = {hash64(std::string_view(d.name)), d.digest};
    mine.append(reinterpret_cast<const char*>(named), sizeof named);
  }
  TROUPE_TRY(const auto all, group.all_gather(mine));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::string who = "rank/" + std::to_string(rank);
    if (all[rank].size() != all[0].size() || mine.size() != all[0].size())
      return fail(ErrorCode::kCorrupt, who + " holds " + std::to_string(all[rank].size() / 16) + " tensors, rank/0 " + std::to_string(all[0].size() / 16));
    std::size_t i = 0;
    while (all[rank].compare(16 * i, 16, all[0], 16 * i, 16) == 0) ++i;
    return fail(ErrorCode::kCorrupt, who + " and rank/0 do not hold the same bits of " + digests[i].name);
  }
  return {};
}

} // namespace troupe::comm
