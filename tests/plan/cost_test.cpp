// Counts of the public releases from their configurations alone, and what layouts hold.
#include "plan/cost.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <numeric>

#include "model/folder.h"
#include "model/kv_cache.h"
#include "plan/describe.h"
#include "plan/layout.h"

namespace troupe::plan {
namespace {

using testing::HasSubstr;

model::ModelSpec spec_of(const std::string& name) {
  auto spec = model::load_spec(std::filesystem::path(TROUPE_GOLDEN_DIR) / "model" / name);
  EXPECT_TRUE(spec) << spec.error().to_string();
  return *spec;
}

/// What the publishers' models have, checked once against library models on the meta device. 0: not published.
struct Release {
  const char* name;
  std::int64_t total, active, further;
  double projections, attention, extra;  // GFLOP a token, T = 4096
};

class Releases : public testing::TestWithParam<Release> {};

TEST_P(Releases, CountsAreThePublishedOnes) {
  const Release& r = GetParam();
  const auto spec = spec_of(std::string("releases/") + r.name);
  const ParameterCounts counts = count_parameters(spec);
  // Muse Spark's published totals count the corrections of its routers.
  const std::int64_t corrections = spec.family == "muse_spark" ? counts[Component::kRules] : 0;
  EXPECT_EQ(counts.total + corrections, r.total);
  if (r.active > 0) {
    EXPECT_EQ(counts.active + corrections, r.active);
  }
  if (r.further > 0) {
    EXPECT_EQ(counts[Component::kFurtherTokens], r.further);
  }
  EXPECT_EQ(std::accumulate(counts.of.begin(), counts.of.end(), std::int64_t{0}), counts.stored);
  EXPECT_EQ(counts.stored, counts.total + counts[Component::kFurtherTokens] + counts[Component::kRules]);
  const TokenOperations o = count_operations(spec, 4096);
  if (r.projections == 0) return;
  EXPECT_NEAR(o.projections / 1e9, r.projections, 0.006);
  EXPECT_NEAR(o.attention / 1e9, r.attention, 0.006);
  EXPECT_NEAR(o.extra / 1e9, r.extra, 0.006);
  EXPECT_LE(o.attention_windowed, o.attention);
}

INSTANTIATE_TEST_SUITE_P(
    All, Releases,
    testing::Values(Release{"llama3_1_8b", 8'030'261'248, 8'030'261'248, 0, 45.03, 6.44, 0},
                    Release{"llama3_1_405b", 405'853'388'800, 405'853'388'800, 0, 2422.51, 101.47, 0},
                    Release{"qwen3_0_6b", 596'049'920, 596'049'920, 0, 3.58, 2.82, 0},
                    Release{"qwen3_8b", 8'190'735'360, 8'190'735'360, 0, 45.41, 7.25, 0},
                    Release{"qwen3_30b_a3b", 30'532'122'624, 3'353'032'704, 0, 18.25, 9.66, 0},
                    Release{"qwen3_5_0_8b", 752'393'024, 0, 20'452'864, 4.51, 0.60, 0.08},
                    Release{"qwen3_5_4b", 4'205'751'296, 0, 0, 25.23, 1.61, 0.23},
                    Release{"qwen3_5_35b_a3b", 34'660'610'688, 3'454'988'928, 844'640'768, 17.68, 2.01, 0.28},
                    Release{"qwen3_5_397b_a17b", 396'346'350'336, 17'349'040'896, 0, 97.99, 6.04, 0.85},
                    Release{"deepseek_v3", 671'026'404'352, 37'552'282'624, 0, 219.75, 61.41, 0},
                    Release{"deepseek_v4_flash", 284'332'230'231, 0, 0, 79.62, 5.42, 0.53},
                    Release{"deepseek_v4_pro", 1'572'997'179'491, 0, 0, 293.11, 18.50, 0.75},
                    Release{"gpt_oss_20b", 20'914'757'184, 4'187'440'704, 0, 21.65, 4.83, 0},
                    Release{"gpt_oss_120b", 116'829'156'672, 5'711'982'912, 0, 0, 0, 0},
                    Release{"muse_spark_816b_a42b", 819'990'552'064, 46'091'132'416, 0, 266.62, 24.96, 0}),
    [](const auto& release) { return std::string(release.param.name); });

TEST(Operations, CompressedAttentionGrowsWithItsEntriesAndNotWithTheSequence) {
  const auto flash = count_operations(spec_of("releases/deepseek_v4_flash"), 65536);
  EXPECT_NEAR(flash.attention / 1e9, 8.33, 0.006);
  EXPECT_NEAR(flash.extra / 1e9, 8.45, 0.006);
  const auto pro = count_operations(spec_of("releases/deepseek_v4_pro"), 65536);
  EXPECT_NEAR(pro.attention / 1e9, 35.77, 0.006);
  EXPECT_NEAR(pro.extra / 1e9, 12.08, 0.006);
}

TEST(Operations, AWindowIsCountedAsOneWhereItIsAskedFor) {
  const auto spec = spec_of("releases/gpt_oss_20b");  // every other layer sees 128 tokens
  const auto o = count_operations(spec, 4096);
  EXPECT_LT(o.attention_windowed, 0.55 * o.attention);
  EXPECT_GT(o.attention_windowed, 0.5 * o.attention);
  const auto inside = count_operations(spec, 1);
  EXPECT_EQ(inside.attention_windowed, inside.attention);
}

/// The states and pages that generation takes are those that the cache itself asks for.
TEST(Cache, CountsWhatTheCacheTakes) {
  for (const char* name : {"qwen3/base", "llama3/base", "qwen3_moe/base", "gpt_oss/base", "deepseek_v3/base", "deepseek_v4/base", "qwen3_5/base",
                           "qwen3_5_moe/base", "muse_spark/base"}) {
    const auto spec = spec_of(name);
    const CacheCost cost = count_cache(spec);
    EXPECT_EQ(cost.bytes_per_sequence, model::KvCache::bytes_per_state(spec)) << name;
    // Pages of 128 tokens hold whole entries of every ratio.
    for (const auto precision : {kernels::Precision::kFloat32, kernels::Precision::kBfloat16})
      EXPECT_DOUBLE_EQ(count_cache(spec, precision).bytes_per_token * 128,
                       static_cast<double>(model::KvCache::bytes_per_page(spec, 128, false, precision))) << name;
  }
  const CacheCost latent = count_cache(spec_of("releases/deepseek_v3"));
  EXPECT_DOUBLE_EQ(latent.bytes_per_token, 61 * 576 * 4) << "576 numbers a token and layer";
}

TEST(Layout, DividesWhatADegreeDivides) {
  const auto spec = spec_of("releases/qwen3_30b_a3b");
  const auto counts = count_parameters(spec);
  const RankMemory whole = *fullest_rank(spec, {});
  EXPECT_EQ(whole.weights, 4 * counts.stored);
  EXPECT_EQ(whole.gradients, 4 * counts.trained);
  EXPECT_EQ(whole.optimizer, 8 * counts.trained);
  EXPECT_EQ(fullest_rank(spec, {.replicate = 4})->total(), whole.total());
  const auto near = [](std::int64_t a, double b) { return std::abs(static_cast<double>(a) / b - 1) < 1e-3; };
  EXPECT_TRUE(near(fullest_rank(spec, {.shard = 8})->total(), static_cast<double>(whole.total()) / 8));
  EXPECT_TRUE(near(fullest_rank(spec, {.tensor = 2})->total(), static_cast<double>(whole.total()) / 2));
  EXPECT_TRUE(near(fullest_rank(spec, {.shard = 8, .expert = 8})->total(), static_cast<double>(whole.total()) / 8));
  const auto experts = static_cast<double>(counts[Component::kExperts]) * 16;
  EXPECT_TRUE(near(fullest_rank(spec, {.replicate = 8, .expert = 8})->total(), static_cast<double>(whole.total()) - experts * 7 / 8));
  std::int64_t stages = 0;
  for (const std::int64_t n : {2, 3, 48}) {
    const auto memory = fullest_rank(spec, {.pipeline = n});
    ASSERT_TRUE(memory) << memory.error().to_string();
    EXPECT_GE(memory->total() * n, whole.total());
    EXPECT_LT(memory->total(), whole.total());
    if (stages > 0) {
      EXPECT_LT(memory->total(), stages);
    }
    stages = memory->total();
  }
}

TEST(Layout, NamesEverythingThatIsWrong) {
  EXPECT_EQ(parse_layout("shard=8,tensor=2")->ranks(), 16);
  const auto error = parse_layout("shard=0,width=2,tensor").error().message;
  for (const char* part : {"'shard=0'", "'width=2'", "'tensor'"}) EXPECT_THAT(error, HasSubstr(part));
  EXPECT_FALSE(parse_layout(""));
  EXPECT_FALSE(parse_layout("shard=8x"));
  EXPECT_FALSE(parse_layout("shard=99999999999999999999"));
  const auto misfit = fullest_rank(spec_of("releases/qwen3_30b_a3b"), {.tensor = 5, .pipeline = 49, .expert = 3}).error().message;
  for (const char* part : {"tensor=5", "pipeline=49", "expert=3"}) EXPECT_THAT(misfit, HasSubstr(part));
}

TEST(Describe, LayersWithTheSamePartsAreOneRow) {
  const auto kinds = layer_kinds(spec_of("releases/gpt_oss_20b"));
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_THAT(kinds[0].attention, HasSubstr("window 128"));
  EXPECT_EQ(kinds[0].layers.size() + kinds[1].layers.size(), 24u);
  EXPECT_EQ(ranges_text({0, 1, 2, 4, 6, 7}), "0-2, 4, 6, 7");
  const auto v4 = layer_kinds(spec_of("releases/deepseek_v4_flash"));
  EXPECT_GE(v4.size(), 4u);
  EXPECT_EQ(ranges_text(v4.front().layers), "0, 1") << "hash layers without compression";
}

}  // namespace
}  // namespace troupe::plan
