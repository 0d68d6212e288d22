#include "rl/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/rng.h"
#include "data/packing.h"

namespace troupe::rl {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Sample sample(std::uint64_t prompt, std::uint32_t index, std::vector<std::int32_t> ids, double reward) {
  Sample s;
  s.id = {prompt, index};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    s.logprobs.push_back(-0.5f - static_cast<float>(ids[i]));
    s.versions.push_back({0, 3});
  }
  s.ids = std::move(ids);
  s.reward = reward;
  return s;
}

Group group(std::uint64_t prompt, std::vector<std::int32_t> ids, std::vector<Sample> samples) { return {prompt, std::move(ids), std::move(samples)}; }

/// Prompt 4: three samples of 3, 1 and 2 tokens; prompt 9: two of 2.
std::vector<Group> two_groups() {
  return {group(9, {7, 8, 9}, {sample(9, 1, {31, 32}, 0), sample(9, 0, {21, 22}, 1)}),
          group(4, {1, 2}, {sample(4, 2, {15, 16}, 1), sample(4, 0, {11, 12, 13}, 1), sample(4, 1, {14}, 0)})};
}

AlgorithmOptions mean_only() {
  AlgorithmOptions o;
  o.advantage.std = StdConvention::kNone;
  return o;
}

TEST(PrepareBatch, OrderIsByIdWhateverTheArrival) {
  auto groups = two_groups();
  const auto batch = prepare_batch(groups, mean_only(), 8);
  ASSERT_TRUE(batch);
  std::reverse(groups.begin(), groups.end());
  for (Group& g : groups) std::reverse(g.samples.begin(), g.samples.end());
  const auto other = prepare_batch(groups, mean_only(), 8);
  for (const auto* b : {&*batch, &*other}) {
    std::vector<std::string> order;
    for (const PreparedGroup& g : b->groups)
      for (const PreparedSample& s : g.samples) order.push_back(to_string(s.sample.id));
    EXPECT_THAT(order, ElementsAre("4/0", "4/1", "4/2", "9/0", "9/1"));
  }
  EXPECT_EQ(batch->denominator.tokens, 10);
  EXPECT_EQ(batch->denominator.sequences, 5);
  EXPECT_EQ(batch->metrics.reward_mean, 0.6);
  EXPECT_EQ(batch->metrics.response_length_mean, 2);
}

// V05: statistics over all four, then the truncated sample leaves the loss; figures keep its length.
TEST(PrepareBatch, TruncatedSamplesAreMaskedAfterTheStatistics) {
  AlgorithmOptions o = mean_only();
  o.overlong.filter = true;
  std::vector<Sample> samples = {sample(1, 0, {1, 1}, 1), sample(1, 1, {1, 1}, 0), sample(1, 2, {1, 1}, 0), sample(1, 3, std::vector<std::int32_t>(6, 1), 1)};
  samples[3].truncated = true;
  const auto batch = prepare_batch({group(1, {5}, samples)}, o, 6);
  ASSERT_TRUE(batch);
  std::vector<double> advantages;
  for (const auto& s : batch->groups[0].samples) advantages.push_back(s.advantage);
  EXPECT_THAT(advantages, ElementsAre(.5, -.5, -.5, .5));
  EXPECT_EQ(batch->groups[0].samples[3].trained_tokens, 0);
  EXPECT_EQ(batch->denominator.tokens, 6);
  EXPECT_EQ(batch->denominator.sequences, 3);
  EXPECT_EQ(batch->denominator.sequences_all, 4);
  EXPECT_EQ(batch->metrics.response_length_max, 6);
  EXPECT_EQ(batch->metrics.clip_ratio, .25);
  const auto micro = cut_micro_batches(*batch, 1000);
  ASSERT_EQ(micro.size(), 1u);
  EXPECT_EQ(micro[0].samples.size(), 3u);
}

// S19: [1,1,1,0] with the last sample left out of the loss teaches nothing.
TEST(PrepareBatch, ZeroSignalSeesTheMask) {
  AlgorithmOptions o = mean_only();
  std::vector<Sample> samples = {sample(1, 0, {1}, 1), sample(1, 1, {1}, 1), sample(1, 2, {1}, 1), sample(1, 3, {1}, 0)};
  samples[3].truncated = true;
  const Group g = group(1, {5}, samples);
  EXPECT_FALSE(group_is_zero_signal(g, o, 6));
  EXPECT_TRUE(prepare_batch({g}, o, 6)->dropped.empty());
  o.overlong.filter = true;
  EXPECT_TRUE(group_is_zero_signal(g, o, 6));
  const auto batch = prepare_batch({g}, o, 6);
  EXPECT_THAT(batch->dropped, ElementsAre(1u));
  EXPECT_EQ(batch->denominator.tokens, 0);
  EXPECT_TRUE(cut_micro_batches(*batch, 100).empty());
  o.advantage.drop_zero_signal = false;
  EXPECT_EQ(prepare_batch({g}, o, 6)->groups.size(), 1u);
  EXPECT_EQ(prepare_batch({g}, o, 6)->metrics.groups_zero_signal, 1);
}

// V03: the same prompt dispatched twice is two groups, each with its own baseline; V01: constant rewards teach nothing, whatever they are.
TEST(PrepareBatch, TheSamePromptTwiceIsTwoGroups) {
  AlgorithmOptions o = mean_only();
  const auto of = [](std::uint64_t prompt, double first, double second) {
    return group(prompt, {5, 6, 7}, {sample(prompt, 0, {1, 2}, first), sample(prompt, 1, {3}, second), sample(prompt, 2, {1, 2}, first)});
  };
  const auto constant = prepare_batch({of(1, 0.9, 0.9), of(2, 0.1, 0.1)}, o, 8);
  ASSERT_TRUE(constant);
  EXPECT_THAT(constant->dropped, ElementsAre(1u, 2u)); // a merged baseline of 0.5 would train all six
  EXPECT_TRUE(cut_micro_batches(*constant, 100).empty());
  const auto batch = prepare_batch({of(1, 1, 0), of(2, 0, 0.3)}, o, 8);
  std::vector<double> advantages;
  for (const auto& g : batch->groups)
    for (const auto& s : g.samples) advantages.push_back(s.advantage);
  EXPECT_THAT(advantages, ElementsAre(DoubleNear(1. / 3, 1e-12), DoubleNear(-2. / 3, 1e-12), DoubleNear(1. / 3, 1e-12), DoubleNear(-.1, 1e-12),
                                      DoubleNear(.2, 1e-12), DoubleNear(-.1, 1e-12)));
  const auto micros = cut_micro_batches(*batch, 100);
  ASSERT_EQ(micros.size(), 1u);
  EXPECT_THAT(micros[0].ids, ElementsAre(5, 6, 7, 1, 1, 5, 6, 7, 1, 1)); // nor are their prompts one
}

TEST(PrepareBatch, OverlongPenaltyShapesTheReward) {
  AlgorithmOptions o = mean_only();
  o.overlong.penalty_buffer = 4;
  o.overlong.penalty = 0.5;
  const auto batch = prepare_batch({group(1, {5}, {sample(1, 0, std::vector<std::int32_t>(18, 1), 1), sample(1, 1, {1}, 1)})}, o, 20);
  EXPECT_EQ(batch->groups[0].samples[0].reward, 1 - 0.5 * 0.5);
  EXPECT_EQ(batch->groups[0].samples[0].advantage, -0.125);
  EXPECT_EQ(batch->metrics.reward_mean, 1); // the task's own
}

TEST(PrepareBatch, BrokenInputIsNamed) {
  const auto error = [](std::vector<Group> groups) {
    const auto r = prepare_batch(std::move(groups), {}, 8);
    return r ? std::string("accepted") : r.error().message;
  };
  EXPECT_THAT(error({group(1, {5}, {sample(1, 0, {1}, 0)}), group(1, {5}, {sample(1, 1, {1}, 0)})}), HasSubstr("prompt 1 is there twice"));
  EXPECT_THAT(error({group(1, {5}, {sample(1, 2, {1}, 0), sample(1, 2, {1}, 0)})}), HasSubstr("sample 1/2 is there twice"));
  EXPECT_THAT(error({group(1, {5}, {sample(3, 2, {1}, 0)})}), HasSubstr("sample 3/2 came with the group of prompt 1"));
  EXPECT_THAT(error({group(1, {}, {sample(1, 0, {1}, 0)})}), HasSubstr("prompt 1 has no tokens"));
  EXPECT_THAT(error({group(1, {5}, {sample(1, 0, {}, 0)})}), HasSubstr("no tokens"));
  auto s = sample(1, 0, {1, 2}, 0);
  s.logprobs.pop_back();
  EXPECT_THAT(error({group(1, {5}, {s})}), HasSubstr("2 ids, 1 log-probs"));
  s = sample(1, 0, {1, 2}, std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(error({group(1, {5}, {s})}), HasSubstr("reward"));
  s = sample(1, 0, {1, 2}, 0);
  s.logprobs[1] = -std::numeric_limits<float>::infinity();
  EXPECT_THAT(error({group(1, {5}, {s})}), HasSubstr("token 1"));
  s.sampled = {1, 0}; // not sampled: its log-prob means nothing
  EXPECT_EQ(error({group(1, {5}, {s})}), "accepted");
}

TEST(MicroBatch, APromptIsStoredOnceAndEveryTargetHasItsRow) {
  const auto batch = prepare_batch(two_groups(), mean_only(), 8);
  const auto micros = cut_micro_batches(*batch, 1000);
  ASSERT_EQ(micros.size(), 1u);
  const MicroBatch& m = micros[0];
  EXPECT_THAT(m.ids, ElementsAre(1, 2, 11, 12, 15, 7, 8, 9, 21, 31));
  EXPECT_THAT(m.positions, ElementsAre(0, 1, 2, 3, 2, 0, 1, 2, 3, 3));
  EXPECT_THAT(m.targets, ElementsAre(11, 12, 13, 14, 15, 16, 21, 22, 31, 32));
  EXPECT_THAT(m.rows, ElementsAre(1, 2, 3, 1, 1, 4, 7, 8, 7, 9));
  ASSERT_EQ(m.segments.size(), 6u); // two prompts; sample 4/1 has one token and needs no row of its own
  EXPECT_EQ(m.segments[1].begin, 2);
  EXPECT_EQ(m.segments[1].end, 4);
  EXPECT_EQ(m.segments[1].prefix_begin, 0);
  EXPECT_EQ(m.segments[1].prefix_end, 2);
  EXPECT_EQ(m.segments[5].begin, 9);
  EXPECT_EQ(m.segments[5].prefix_begin, 5);
  EXPECT_EQ(m.segments[5].prefix_end, 8);
  for (std::size_t i = 0; i < m.targets.size(); ++i) EXPECT_EQ(m.behaviour_logprob[i], -0.5f - static_cast<float>(m.targets[i]));
}

// V10: lengths and masks come from the sampler. A stop id is trained, an aborted sample has no end, and other turns are context only.
TEST(MicroBatch, MaskedTurnsAreContextNotTargets) {
  auto s = sample(1, 0, {10, 2, 90, 91, 11, 7, 92}, 1);
  s.sampled = {1, 1, 0, 0, 1, 1, 0};
  const auto batch = prepare_batch({group(1, {5, 6}, {s, sample(1, 1, {4}, 0)})}, mean_only(), 16);
  const auto micros = cut_micro_batches(*batch, 1000);
  const MicroBatch& m = micros[0];
  EXPECT_THAT(m.ids, ElementsAre(5, 6, 10, 2, 90, 91, 11)); // nothing after the row that predicts the last sampled token
  EXPECT_THAT(m.targets, ElementsAre(10, 2, 11, 7, 4));
  EXPECT_THAT(m.rows, ElementsAre(1, 2, 5, 6, 1));
  EXPECT_EQ(batch->denominator.tokens, 5);
}

/// What the model would see for each target: its sequence's tokens up to it, found by walking the segments.
std::vector<std::vector<std::int32_t>> contexts(const std::vector<MicroBatch>& micros) {
  std::vector<std::vector<std::int32_t>> all;
  for (const MicroBatch& m : micros)
    for (std::size_t i = 0; i < m.targets.size(); ++i) {
      std::vector<std::int32_t> seen;
      for (const Segment& s : m.segments) {
        if (m.rows[i] < s.begin || m.rows[i] >= s.end) continue;
        seen.assign(m.ids.begin() + s.prefix_begin, m.ids.begin() + s.prefix_end);
        seen.insert(seen.end(), m.ids.begin() + s.begin, m.ids.begin() + m.rows[i] + 1);
        EXPECT_EQ(m.positions[static_cast<std::size_t>(m.rows[i])] + 1, static_cast<std::int32_t>(seen.size()));
      }
      seen.push_back(m.targets[i]);
      all.push_back(seen);
    }
  return all;
}

// V04: the same targets in the same contexts, the same loss and gradient bits, for every token budget.
TEST(MicroBatch, TheCutChangesNothing) {
  Rng rng(4, RngStream::kTest);
  std::vector<Group> groups;
  for (std::uint64_t p = 0; p < 6; ++p) {
    Group g{p, {}, {}};
    for (std::uint64_t n = 1 + rng.below(6); n > 0; --n) g.prompt.push_back(static_cast<std::int32_t>(rng.below(100)));
    for (std::uint32_t i = 0; i < 4; ++i) {
      std::vector<std::int32_t> ids;
      for (std::uint64_t n = 1 + rng.below(9); n > 0; --n) ids.push_back(static_cast<std::int32_t>(rng.below(100)));
      g.samples.push_back(sample(p, i, ids, rng.uniform()));
    }
    groups.push_back(g);
  }
  LossOptions loss;
  const auto batch = prepare_batch(groups, AlgorithmOptions{}, 16);
  std::vector<std::vector<std::int32_t>> expected;
  std::vector<float> gradients;
  double whole = 0;
  for (std::int64_t rows_max : {100000, 40, 20, 7, 1}) {
    const auto micros = cut_micro_batches(*batch, rows_max);
    std::vector<float> joined;
    LossTotals totals;
    for (const MicroBatch& m : micros) {
      const bool single = m.samples.size() == 1;
      EXPECT_TRUE(single || static_cast<std::int64_t>(m.ids.size()) <= rows_max);
      std::vector<float> logprob;
      for (std::int32_t target : m.targets) logprob.push_back(-0.45f - static_cast<float>(target));
      const auto result = policy_loss(token_batch(m, logprob), loss, batch->denominator, totals);
      ASSERT_TRUE(result) << result.error().message;
      joined.insert(joined.end(), result->dloss_dlogprob.begin(), result->dloss_dlogprob.end());
    }
    if (expected.empty()) {
      EXPECT_EQ(micros.size(), 1u);
      expected = contexts(micros), gradients = joined, whole = totals.loss;
    }
    EXPECT_EQ(contexts(micros), expected) << rows_max;
    EXPECT_EQ(joined, gradients) << rows_max;
    EXPECT_EQ(totals.loss, whole) << rows_max;
  }
}

TEST(MicroBatch, EqualWeightsNeedEveryTokenOfTheVersion) {
  auto groups = two_groups();
  groups[1].samples[1].versions[2] = {0, 2}; // 4/0
  const auto batch = prepare_batch(groups, mean_only(), 8);
  const auto micros = cut_micro_batches(*batch, 1000);
  EXPECT_THAT(equal_weights_mask(micros[0], {0, 3}), ElementsAre(0, 0, 0, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(equal_weights_mask(micros[0], {1, 3}), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(micros[0].versions[0], ElementsAre(PolicyVersion{0, 2}, PolicyVersion{0, 3}));
}

// V12: a sample whose conversation was begun anew is several contexts of one sequence: none of them sees another.
TEST(MicroBatch, ContextsOfASampleDoNotSeeEachOther) {
  auto of_contexts = [] {
    Sample s = sample(4, 1, {11, 12, 50, 51, 21, 22, 60, 31}, 1);
    s.sampled = {1, 1, 0, 0, 1, 1, 0, 1};
    s.starts = {2, 6};
    return s;
  };
  const auto batch = prepare_batch({group(4, {1, 2}, {sample(4, 0, {71}, 0), of_contexts()})}, mean_only(), 16);
  ASSERT_TRUE(batch) << batch.error().message;
  for (const std::int64_t rows_max : {1000, 5, 1}) {
    const auto micros = cut_micro_batches(*batch, rows_max);
    const std::vector<std::vector<std::int32_t>> wanted{{1, 2, 71}, {1, 2, 11}, {1, 2, 11, 12}, {50, 51, 21}, {50, 51, 21, 22}, {60, 31}};
    EXPECT_EQ(contexts(micros), wanted) << rows_max;
    for (const MicroBatch& m : micros) EXPECT_EQ(m.sequences.size(), m.samples.size()) << "one sequence a sample";
  }
  for (const std::vector<std::uint32_t>& starts : std::vector<std::vector<std::uint32_t>>{{0}, {8}, {6, 2}, {2, 2}, {4}}) {
    Sample bad = of_contexts();
    bad.starts = starts;
    EXPECT_THAT(prepare_batch({group(4, {1, 2}, {bad})}, mean_only(), 16).error().message, HasSubstr("begins a context"));
  }
}

// V11: [1,2,3 | 4,5] trains on 2, 3 and 5, never on 4 after 3.
TEST(CutPacked, DocumentsDoNotLeakIntoEachOther) {
  data::PackedSequences packed;
  packed.ids = {1, 2, 3, 4, 5};
  packed.positions = {0, 1, 2, 0, 1};
  packed.targets = {2, 3, -1, 5, -1};
  packed.loss_mask = {1, 1, 0, 1, 0};
  packed.documents = {{0, 3}, {3, 5}};
  Denominator d = make_denominator(Aggregation::kTokenMean);
  count_packed(d, packed);
  EXPECT_EQ(d.tokens, 3);
  EXPECT_EQ(d.sequences, 2);
  const auto one = cut_packed(packed, 100);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_THAT(one[0].targets, ElementsAre(2, 3, 5));
  EXPECT_THAT(one[0].rows, ElementsAre(0, 1, 3));
  ASSERT_EQ(one[0].segments.size(), 2u);
  EXPECT_EQ(one[0].segments[1].begin, 3);
  const auto two = cut_packed(packed, 3);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_THAT(two[1].rows, ElementsAre(0));
  // The whole and the parts have the same loss under the one denominator.
  const std::vector<float> logprobs = {-1, -2, -6};
  LossTotals whole, parts;
  ASSERT_TRUE(cross_entropy_loss(token_batch(one[0], logprobs), d, whole));
  ASSERT_TRUE(cross_entropy_loss(token_batch(two[0], std::span(logprobs).subspan(0, 2)), d, parts));
  ASSERT_TRUE(cross_entropy_loss(token_batch(two[1], std::span(logprobs).subspan(2)), d, parts));
  EXPECT_EQ(whole.loss, 3);
  EXPECT_EQ(parts.loss, 3);
}

// S16: whatever the ranks, each sequence is computed by exactly one of them, in the order of the batch.
TEST(Parts, AreDisjointAndTogetherTheWholeBatch) {
  std::vector<Group> groups;
  for (std::uint64_t prompt = 0; prompt < 8; ++prompt)
    groups.push_back(group(prompt, {1, 2, 3}, {sample(prompt, 0, std::vector<std::int32_t>(1 + 3 * (prompt % 3), 9), 1), sample(prompt, 1, {4}, 0)}));
  const auto batch = prepare_batch(groups, mean_only(), 16);
  ASSERT_TRUE(batch);
  data::PackedSequences documents;
  for (std::int32_t i = 0; i < 8; ++i) data::append(documents, {std::vector<std::int32_t>(2 + static_cast<std::size_t>(i % 4), 100 + i), std::vector<std::uint8_t>(2 + static_cast<std::size_t>(i % 4), 1)});
  for (const std::uint32_t count : {1U, 2U, 3U, 8U, 40U}) {
    std::vector<std::string> seen;
    std::vector<std::int32_t> ids;
    std::int64_t least = 1000, most = 0;
    for (std::uint32_t index = 0; index < count; ++index) {
      std::int64_t rows = 0;
      for (const MicroBatch& micro : cut_micro_batches(*batch, 12, {index, count}))
        for (const SampleId& id : micro.samples) seen.push_back(to_string(id));
      for (const MicroBatch& micro : cut_packed(documents, 7, {index, count})) {
        ids.insert(ids.end(), micro.ids.begin(), micro.ids.end());
        rows += static_cast<std::int64_t>(micro.ids.size());
      }
      least = std::min(least, rows), most = std::max(most, rows);
    }
    std::vector<std::string> wanted;
    for (std::uint64_t prompt = 0; prompt < 8; ++prompt) wanted.insert(wanted.end(), {std::to_string(prompt) + "/0", std::to_string(prompt) + "/1"});
    EXPECT_EQ(seen, wanted) << count;
    EXPECT_EQ(ids, documents.ids) << count;
    if (count <= 3) { EXPECT_LE(most - least, 5) << "no more than about one document apart"; }
    if (count == 40) { EXPECT_EQ(least, 0) << "there is nothing for most of them"; }
  }
}

} // namespace
} // namespace troupe::rl
