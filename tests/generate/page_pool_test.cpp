#include "generate/page_pool.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"

namespace troupe::generate {
namespace {

TEST(PagePool, CountsLikeAMapUnderRandomUse) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed, RngStream::kTest);
    PagePool pool(7);
    std::map<std::int32_t, int> held;
    for (int i = 0; i < 2000; ++i) {
      const auto pick = [&] {
        return std::next(held.begin(), static_cast<std::ptrdiff_t>(rng.below(held.size())))->first;
      };
      switch (rng.below(3)) {
        case 0: {
          const auto page = pool.allocate();
          ASSERT_EQ(page.has_value(), held.size() < 7);
          if (page) {
            ASSERT_TRUE(held.emplace(*page, 1).second) << "handed out twice";
          }
          break;
        }
        case 1:
          if (held.empty()) break;
          pool.retain(pick());
          break;
        default:
          if (held.empty()) break;
          pool.release(pick());
      }
      for (auto it = held.begin(); it != held.end();) {
        it->second = pool.references(it->first);
        it = it->second == 0 ? held.erase(it) : std::next(it);
      }
      ASSERT_EQ(pool.free_pages(), 7 - static_cast<int>(held.size()));
    }
  }
}

TEST(PagePool, SharedPagesLiveUntilTheLastHolderGoes) {
  PagePool pool(1);
  const auto page = pool.allocate();
  pool.retain(*page);
  pool.release(*page);
  EXPECT_FALSE(pool.allocate().has_value());
  pool.release(*page);
  EXPECT_TRUE(pool.allocate().has_value());
}

TEST(PagePoolDeathTest, GivingBackTwiceStopsTheProcess) {
  PagePool pool(2);
  const auto page = pool.allocate();
  pool.release(*page);
  EXPECT_DEATH(pool.release(*page), "given back twice");
  EXPECT_DEATH(pool.retain(*page), "cannot be shared");
  EXPECT_DEATH(pool.release(2), "no such page");
}

}  // namespace
}  // namespace troupe::generate
