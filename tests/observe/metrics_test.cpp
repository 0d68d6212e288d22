#include "observe/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "observe/names.h"

namespace troupe::observe {
namespace {

TEST(MetricBuffer, FoldsByTheRuleOfTheFirstUse) {
  MetricBuffer buffer;
  for (const double v : {2.0, 6.0, 4.0}) {
    buffer.add("last", v);
    buffer.add("sum", v, Fold::kSum);
    buffer.add("mean", v, Fold::kMean, v);
    buffer.add("max", v, Fold::kMax);
    buffer.add("min", v, Fold::kMin);
  }
  const MetricBatch batch = buffer.take(7, "rl", 1.5);
  EXPECT_EQ(batch.step, 7u);
  EXPECT_EQ(*batch.find("last"), 4);
  EXPECT_EQ(*batch.find("sum"), 12);
  EXPECT_DOUBLE_EQ(*batch.find("mean"), (4 + 36 + 16) / 12.0);
  EXPECT_EQ(*batch.find("max"), 6);
  EXPECT_EQ(*batch.find("min"), 2);
  EXPECT_EQ(batch.find("other"), nullptr);
  EXPECT_TRUE(buffer.empty()) << "a step must not leak into the next";
}

TEST(MetricBuffer, ANanIsNotHiddenByAMaximum) {
  MetricBuffer buffer;
  for (const double v : {1.0, std::nan(""), 2.0}) buffer.add("x", v, Fold::kMax);
  EXPECT_TRUE(std::isnan(*buffer.take(0, "", 0).find("x")));
}

TEST(MetricBuffer, AMeanOfNothingIsAbsent) {
  MetricBuffer buffer;
  buffer.add(names::kLogprobDiffMean, 0.5, Fold::kMean, 0);
  EXPECT_EQ(buffer.take(0, "", 0).find(names::kLogprobDiffMean), nullptr);
}

TEST(MetricBuffer, IsBoundedAndCountsWhatItDrops) {
  MetricBuffer buffer(2);
  buffer.add("z", 1);
  buffer.add("b", 1);
  buffer.add("c", 1);
  buffer.add("z", 5);
  const MetricBatch batch = buffer.take(0, "", 0);
  EXPECT_EQ(*batch.find("z"), 5);
  EXPECT_EQ(batch.find("c"), nullptr);
  EXPECT_EQ(*batch.find(names::kMetricsDropped), 1);
}

}  // namespace
}  // namespace troupe::observe
