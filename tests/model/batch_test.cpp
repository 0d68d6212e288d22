#include "model/batch.h"

#include <gtest/gtest.h>

namespace troupe::model {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(Batch, DocumentsLieSideBySide) {
  const Batch batch = pack_documents(std::vector<Ids>{{5, 6, 7}, {8, 9}});
  EXPECT_EQ(batch.ids, (Ids{5, 6, 7, 8, 9}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 2, 0, 1}));
  ASSERT_EQ(batch.segments.size(), 2U);
  EXPECT_EQ(batch.segments[1].begin, 3);
  EXPECT_EQ(batch.segments[1].end, 5);
  check_batch(batch);
}

TEST(Batch, AGroupHoldsItsPromptOnce) {
  Batch batch;
  append_group(batch, Ids{1, 2, 3}, std::vector<Ids>{{4}, {5, 6}});
  append_group(batch, Ids{7}, std::vector<Ids>{{8}});
  EXPECT_EQ(batch.ids, (Ids{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 2, 3, 3, 4, 0, 1}));
  ASSERT_EQ(batch.segments.size(), 5U);
  EXPECT_EQ(batch.segments[2].prefix_begin, 0);
  EXPECT_EQ(batch.segments[2].prefix_end, 3);
  EXPECT_EQ(batch.segments[4].prefix_begin, 6);
  check_batch(batch);
}

TEST(BatchDeathTest, IllFormedBatchesStopTheProcess) {
  const Batch good = pack_documents(std::vector<Ids>{{5, 6, 7}, {8, 9}});
  const auto with = [&](auto&& change) {
    Batch batch = good;
    change(batch);
    return batch;
  };
  EXPECT_DEATH(check_batch(with([](Batch& b) { b.positions.pop_back(); })), "one position");
  EXPECT_DEATH(check_batch(with([](Batch& b) { b.positions[0] = -1; })), "one position");
  EXPECT_DEATH(check_batch(with([](Batch& b) { b.segments.pop_back(); })), "segments cover the rows");
  EXPECT_DEATH(check_batch(with([](Batch& b) { b.segments[1].begin = 2; })), "segments cover the rows");
  EXPECT_DEATH(check_batch(with([](Batch& b) { b.segments[1].prefix_begin = 1, b.segments[1].prefix_end = 3; })),
               "a prefix begins where");
  EXPECT_DEATH(check_batch(with([](Batch& b) { b.segments[0].prefix_end = 5; })), "a prefix");
}

TEST(BatchDeathTest, IllFormedCachedBatchesStopTheProcess) {
  const CachedBatch good{{1, 2, 3}, {20, 21, 22}, {{0, 3, 20, {4, 1}}}};
  check_batch(good, 16, 5);
  EXPECT_DEATH(check_batch(good, 16, 4), "page number");
  EXPECT_DEATH(check_batch(CachedBatch{{1, 2, 3}, {20, 21, 22}, {{0, 3, 30, {4, 1}}}}, 16, 5),
               "more tokens than its pages hold");
  EXPECT_DEATH(check_batch(CachedBatch{{1, 2, 3}, {20, 21, 22}, {{0, 2, 20, {4, 1}}}}, 16, 5),
               "segments cover the rows");
}

}  // namespace
}  // namespace troupe::model
