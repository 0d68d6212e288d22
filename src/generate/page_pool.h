/// @file
/// Which page of the KV cache is whose. Numbers only; the memory is model::KvCache.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace troupe::generate {

/// Reference-counted pages, a fixed number of them. A page that several hold is read-only: who wants to write copies it
/// first. Taking and giving back are O(1); giving back a page that nobody holds stops the process.
class PagePool {
 public:
  explicit PagePool(int pages);

  /// A page with one reference, or nothing when all are taken.
  [[nodiscard]] std::optional<std::int32_t> allocate();
  void retain(std::int32_t page);
  /// Drops one reference; the last one frees the page.
  void release(std::int32_t page);

  [[nodiscard]] int references(std::int32_t page) const;
  [[nodiscard]] int pages() const { return static_cast<int>(references_.size()); }
  [[nodiscard]] int free_pages() const { return static_cast<int>(free_.size()); }

 private:
  std::vector<int> references_;
  std::vector<std::int32_t> free_;  // a stack: the page freed last is the warmest
};

}  // namespace troupe::generate
