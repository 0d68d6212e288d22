/// @file
/// A hash table from pairs of token ids to 64 bits: open addressing, no erase, one cache line per
/// look-up in the common case.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe::data {

/// The key of a pair of ids.
[[nodiscard]] constexpr std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

class PairTable {
 public:
  static constexpr std::uint64_t kAbsent = ~std::uint64_t{0};

  explicit PairTable(std::size_t count = 0) {
    std::size_t slots = 16;
    while (slots < count * 2) slots *= 2;
    slots_.resize(slots);
  }

  /// Returns false and changes nothing when the key is there. The key ~0 is reserved; at most the
  /// `count` of the constructor.
  bool insert(std::uint64_t key, std::uint64_t value) {
    for (std::size_t i = home(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return false;
      if (slots_[i].key != kAbsent) continue;
      slots_[i] = {key, value};
      return true;
    }
  }
  [[nodiscard]] std::uint64_t find(std::uint64_t key) const {
    for (std::size_t i = home(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].value;
      if (slots_[i].key == kAbsent) return kAbsent;
    }
  }

 private:
  struct Slot {
    std::uint64_t key = kAbsent, value = kAbsent;
  };
  [[nodiscard]] std::size_t home(std::uint64_t key) const {
    key = (key ^ key >> 32) * 0x9E3779B97F4A7C15u;
    return (key ^ key >> 29) & (slots_.size() - 1);
  }
  std::vector<Slot> slots_;
};

} // namespace troupe::data
