#include "generate/page_pool.h"

#include "base/check.h"

namespace troupe::generate {

PagePool::PagePool(int pages) : references_(static_cast<std::size_t>(pages), 0) {
  free_.reserve(references_.size());
  for (std::int32_t page = pages; page-- > 0;) free_.push_back(page);
}

std::optional<std::int32_t> PagePool::allocate() {
  if (free_.empty()) return std::nullopt;
  const std::int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void PagePool::retain(std::int32_t page) {
  TROUPE_CHECK(references(page) > 0, "a free page cannot be shared");
  ++references_[static_cast<std::size_t>(page)];
}

void PagePool::release(std::int32_t page) {
  TROUPE_CHECK(references(page) > 0, "a page was given back twice");
  if (--references_[static_cast<std::size_t>(page)] == 0) free_.push_back(page);
}

int PagePool::references(std::int32_t page) const {
  TROUPE_CHECK(page >= 0 && page < pages(), "no such page");
  return references_[static_cast<std::size_t>(page)];
}

}  // namespace troupe::generate
