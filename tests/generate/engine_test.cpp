#include "generate/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "kernels/isa.h"
#include "model/load.h"
#include "model/model.h"

namespace troupe::generate {
namespace {

constexpr PolicyVersion kV0{0, 0}, kV1{0, 1};

/// A small model of a family that is made from sizes, or of the same shape as a fixture ("folder/of/fixture").
model::ModelSpec tiny(std::string_view family) {
  if (family.find('/') != std::string_view::npos) {
    auto spec = model::load_spec(std::filesystem::path(TROUPE_GOLDEN_DIR) / "model" / family);
    EXPECT_TRUE(spec.has_value()) << spec.error().message;
    spec->vocab_used = 61;
    spec->context = 96;
    spec->init_std = 0.3;
    spec->mtp.clear();
    return *spec;
  }
  auto spec = model::spec_from_sizes(family, {.vocab_size = 64,
                                              .width = 32,
                                              .layers = 2,
                                              .heads = 4,
                                              .kv_heads = 2,
                                              .head_dim = 16,
                                              .ffn_width = 48,
                                              .context = 96,
                                              .init_std = 0.3});
  EXPECT_TRUE(spec.has_value()) << spec.error().message;
  spec->vocab_used = 61;  // the last three rows are padding
  return *spec;
}

EngineOptions small_options() { return {.page_tokens = 16, .kv_pages = 64, .sequences_max = 16, .prefill_tokens = 7}; }

Request request_of(std::uint64_t prompt, std::uint32_t sample, int prompt_tokens = 10, int new_tokens = 12) {
  Request r;
  r.id = {prompt, sample};
  r.group = prompt;
  r.seed = 5;
  for (int i = 0; i < prompt_tokens; ++i)
    r.prompt.push_back(static_cast<std::int32_t>((prompt * 7 + static_cast<std::uint64_t>(i) * 11) % 61));
  r.sampling.max_new_tokens = new_tokens;
  return r;
}

std::map<SampleId, Completion> drain(Engine& engine) {
  std::map<SampleId, Completion> all;
  while (!engine.idle())
    for (Completion& c : engine.step().finished) {
      EXPECT_EQ(c.error, "");
      all.emplace(c.id, std::move(c));
    }
  return all;
}

// What the trainer says of the tokens of these completions: one packed batch, forward and score of the model itself.
std::vector<std::vector<float>> train_scores(
    model::Model& model, const std::vector<std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>>>& sequences,
    double temperature) {
  std::vector<std::vector<std::int32_t>> documents;
  for (const auto& [prompt, ids] : sequences) {
    documents.push_back(prompt);
    documents.back().insert(documents.back().end(), ids.begin(), ids.end());
  }
  const model::Batch batch = model::pack_documents(documents);
  const at::Tensor hidden = model.forward(batch);
  std::vector<std::int32_t> targets(batch.ids.begin() + 1, batch.ids.end());
  targets.push_back(0);  // the last row of a document has no target; whatever it scores is not read
  const auto scores = model.score(hidden, targets, temperature);
  const float* logprob = scores.logprob.const_data_ptr<float>();
  std::vector<std::vector<float>> out;
  std::size_t begin = 0;
  for (const auto& [prompt, ids] : sequences) {
    const float* first = logprob + begin + prompt.size() - 1;
    out.emplace_back(first, first + ids.size());
    begin += prompt.size() + ids.size();
  }
  return out;
}

class EngineOnModel : public testing::TestWithParam<const char*> {};

// Invariant 3: the log-probs recorded while sampling have the bits of the trainer's, and of both probe paths.
TEST_P(EngineOnModel, GeneratorAndTrainerAgreeBitForBit) {
  for (const double temperature : {1.0, 0.7}) {
    model::Model model = model::Model::create(tiny(GetParam()), 3);
    Engine engine(model, nullptr, small_options());
    for (std::uint64_t p = 0; p < 3; ++p)
      for (std::uint32_t s = 0; s < 4; ++s) {
        Request r = request_of(p, s, 5 + 9 * static_cast<int>(p), 6 + 5 * static_cast<int>(s));
        r.sampling.temperature = temperature;
        ASSERT_TRUE(engine.submit(std::move(r)).has_value());
      }
    const auto all = drain(engine);
    ASSERT_EQ(all.size(), 12u);
    EXPECT_GT(engine.stats().tokens_shared, 0u);
    std::vector<std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>>> sequences;
    for (const auto& [id, c] : all)
      sequences.emplace_back(request_of(id.prompt, 0, 5 + 9 * static_cast<int>(id.prompt)).prompt, c.ids);
    const auto trained = train_scores(model, sequences, temperature);
    std::size_t i = 0;
    for (const auto& [id, c] : all) {
      EXPECT_EQ(c.logprobs, trained[i]) << to_string(id);
      std::vector<std::int32_t> ids = sequences[i].first;
      const auto prompt_len = static_cast<std::int32_t>(ids.size());
      ids.insert(ids.end(), c.ids.begin(), c.ids.end());
      for (const bool decode_path : {false, true}) {
        const auto probe = engine.score(ids, prompt_len, temperature, decode_path);
        ASSERT_TRUE(probe.has_value()) << probe.error().message;
        EXPECT_EQ(*probe, c.logprobs) << to_string(id) << " decode " << decode_path;
      }
      for (const std::int32_t token : c.ids) EXPECT_LT(token, 61) << "padding of the vocabulary was sampled";
      ++i;
    }
  }
}

// S22, S02: chunk, page, batch, engine and preemption change no bit.
TEST_P(EngineOnModel, SchedulingChangesNoBit) {
  model::Model model = model::Model::create(tiny(GetParam()), 3);
  std::uint64_t preemptions = 0;
  const auto run = [&](EngineOptions options, int engines) {
    std::vector<Engine> all;
    for (int e = 0; e < engines; ++e) all.emplace_back(model, nullptr, options);
    for (std::uint64_t p = 0; p < 2; ++p)
      for (std::uint32_t s = 0; s < 8; ++s)
        EXPECT_TRUE(all[s % static_cast<std::uint32_t>(engines)].submit(request_of(p, s, 13, 24)).has_value());
    std::map<SampleId, Completion> done;
    for (Engine& engine : all) {
      done.merge(drain(engine));
      preemptions += engine.stats().preemptions;
    }
    return done;
  };
  const auto reference =
      run({.page_tokens = 32, .kv_pages = 64, .sequences_max = 1, .prefill_tokens = 64, .cached_prompts_max = 0}, 1);
  ASSERT_EQ(reference.size(), 16u);
  for (const int chunk : {1, 3, 8})
    for (const int engines : {1, 2, 4}) {
      const auto other = run({.page_tokens = 16, .kv_pages = 7, .sequences_max = 16, .prefill_tokens = chunk}, engines);
      for (const auto& [id, c] : reference) {
        EXPECT_EQ(other.at(id).ids, c.ids) << to_string(id);
        EXPECT_EQ(other.at(id).logprobs, c.logprobs) << to_string(id);
      }
    }
  EXPECT_GT(preemptions, 0u);
}

// S05: the same prompt after an update gives what a cold engine with the new weights gives, bit for bit.
TEST_P(EngineOnModel, AfterAnUpdateNewRequestsMatchAColdEngine) {
  for (const OnUpdate mode : {OnUpdate::kKeepKv, OnUpdate::kRecomputeKv}) {
    model::Model fresh = model::Model::create(tiny(GetParam()), 4);
    Engine cold(fresh, nullptr, small_options(), kV1);
    ASSERT_TRUE(cold.submit(request_of(1, 9)).has_value());
    const Completion expected = drain(cold).at({1, 9});

    model::Model model = model::Model::create(tiny(GetParam()), 3);
    Engine warm(model, nullptr, small_options(), kV0);
    for (std::uint32_t s = 0; s < 3; ++s) ASSERT_TRUE(warm.submit(request_of(1, s, 10, 20)).has_value());
    for (int i = 0; i < 6; ++i) warm.step();
    for (std::size_t i = 0; i < model.parameters().size(); ++i)
      model.parameters()[i].value.copy_(fresh.parameters()[i].value);
    warm.weights_changed(kV1, mode);
    ASSERT_TRUE(warm.submit(request_of(1, 9)).has_value());
    const auto all = drain(warm);
    EXPECT_EQ(all.at({1, 9}).ids, expected.ids);
    EXPECT_EQ(all.at({1, 9}).logprobs, expected.logprobs);
    EXPECT_EQ(all.at({1, 9}).kv_oldest, kV1);
    const Completion& straddling = all.at({1, 0});
    EXPECT_EQ(straddling.versions.front(), kV0);
    EXPECT_EQ(straddling.versions.back(), kV1);
    EXPECT_EQ(straddling.kv_oldest, kV0);

    // The last token of a recomputed one is exact under the new weights; that of a kept one mixes both.
    std::vector<std::int32_t> ids = request_of(1, 0).prompt;
    ids.insert(ids.end(), straddling.ids.begin(), straddling.ids.end());
    const auto probe = warm.score(ids, 10, 1.0, false);
    ASSERT_TRUE(probe.has_value());
    EXPECT_EQ(probe->back() == straddling.logprobs.back(), mode == OnUpdate::kRecomputeKv);
  }
}

// Conversations that grow by their own replies, in a cache that is too small for them: what is reused changes nothing.
TEST_P(EngineOnModel, ReusedPrefixesChangeNoBit) {
  model::Model model = model::Model::create(tiny(GetParam()), 3);
  std::map<bool, std::map<SampleId, Completion>> by_reuse;
  std::uint64_t shared = 0;
  for (const bool reuse : {false, true}) {
    EngineOptions options{.page_tokens = 16, .kv_pages = 14, .sequences_max = 5, .prefill_tokens = 11};
    options.reuse_prefixes = reuse;
    Engine engine(model, nullptr, options);
    std::vector<std::vector<std::int32_t>> conversations;
    for (std::uint64_t p = 0; p < 4; ++p) conversations.push_back(request_of(p, 0, 9 + 5 * static_cast<int>(p)).prompt);
    for (std::uint64_t round = 0; round < 3; ++round) {
      for (std::uint64_t p = 0; p < 4; ++p)
        for (std::uint32_t s = 0; s < 2; ++s) {
          Request r = request_of(100 * round + p, s, 1, 9);
          r.prompt = conversations[p];
          ASSERT_TRUE(engine.submit(std::move(r)).has_value());
        }
      const auto done = drain(engine);
      for (std::uint64_t p = 0; p < 4; ++p) {
        const Completion& said = done.at({100 * round + p, 0});
        conversations[p].insert(conversations[p].end(), said.ids.begin(), said.ids.end());
        conversations[p].push_back(static_cast<std::int32_t>(p));
      }
      by_reuse[reuse].insert(done.begin(), done.end());
    }
    EXPECT_TRUE(engine.idle());
    if (reuse) {
      EXPECT_GT(engine.stats().tokens_shared, shared);
    }
    shared = engine.stats().tokens_shared;
  }
  ASSERT_EQ(by_reuse[true].size(), 24u);
  for (const auto& [id, c] : by_reuse[false]) {
    EXPECT_EQ(by_reuse[true].at(id).ids, c.ids) << to_string(id);
    EXPECT_EQ(by_reuse[true].at(id).logprobs, c.logprobs) << to_string(id);
  }
}

TEST_P(EngineOnModel, AnAbortedSampleContinuesOnAnotherEngine) {
  model::Model model = model::Model::create(tiny(GetParam()), 3);
  Engine whole(model, nullptr, small_options());
  ASSERT_TRUE(whole.submit(request_of(1, 2, 10, 16)).has_value());
  const Completion expected = drain(whole).at({1, 2});
  Engine first(model, nullptr, small_options()), second(model, nullptr, small_options());
  ASSERT_TRUE(first.submit(request_of(1, 2, 10, 16)).has_value());
  for (int i = 0; i < 7; ++i) first.step();
  Request rest = request_of(1, 2, 10, 16);
  rest.prefix = prefix_of(*first.abort({1, 2}));
  ASSERT_GT(rest.prefix.ids.size(), 2u);
  ASSERT_TRUE(second.submit(std::move(rest)).has_value());
  const Completion c = drain(second).at({1, 2});
  EXPECT_EQ(c.ids, expected.ids);
  EXPECT_EQ(c.logprobs, expected.logprobs);
}

INSTANTIATE_TEST_SUITE_P(Families, EngineOnModel,
                         testing::Values("qwen3", "llama", "qwen3_moe/base", "gpt_oss/base", "deepseek_v3/yarn",
                                         "deepseek_v4/base", "qwen3_5/base", "qwen3_5_moe/base", "muse_spark/base"),
                         [](const auto& family) {
                           std::string name = family.param;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

// The model's own block guesses: with five tokens to choose from it is right now and then, and nothing but the number of steps changes.
class GuessingOnModel : public testing::TestWithParam<const char*> {};

TEST_P(GuessingOnModel, ChangesNoBit) {
  auto spec = model::load_spec(std::filesystem::path(TROUPE_GOLDEN_DIR) / "model" / GetParam());
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  spec->vocab_used = 5;
  spec->context = 96;
  spec->init_std = 0.3;
  ASSERT_TRUE(model::can_guess(*spec));
  model::Model model = model::Model::create(*spec, 3);
  const auto run = [&](EngineOptions options, int draft_tokens, double temperature) {
    options.draft_tokens = draft_tokens;
    Engine engine(model, nullptr, options);
    for (std::uint64_t p = 0; p < 2; ++p)
      for (std::uint32_t s = 0; s < 6; ++s) {
        Request request = request_of(p, s, 13, 24);
        for (std::int32_t& id : request.prompt) id %= 5;
        request.sampling.temperature = temperature;
        if (s == 5) request.sampling.stop_ids = {4};
        EXPECT_TRUE(engine.submit(std::move(request)).has_value());
      }
    auto done = drain(engine);
    return std::pair(std::move(done), engine.stats());
  };
  const EngineOptions roomy{.page_tokens = 32, .kv_pages = 64, .sequences_max = 12, .prefill_tokens = 64};
  const EngineOptions tight{.page_tokens = 16, .kv_pages = 9, .sequences_max = 12, .prefill_tokens = 3};
  for (const double temperature : {1.0, 0.0}) {
    const auto [expected, plain] = run(roomy, 0, temperature);
    EXPECT_EQ(plain.drafts, 0u);
    for (const EngineOptions& options : {roomy, tight}) {
      const auto [got, stats] = run(options, 1, temperature);
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [id, c] : expected) {
        EXPECT_EQ(got.at(id).ids, c.ids) << to_string(id);
        EXPECT_EQ(got.at(id).logprobs, c.logprobs) << to_string(id);
      }
      EXPECT_GT(stats.drafts_accepted, 0u);
      EXPECT_GT(stats.drafts, stats.drafts_accepted);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GuessingOnModel,
                         testing::Values("deepseek_v3/base", "deepseek_v4/base", "qwen3_5/base", "qwen3_5_moe/base"), [](const auto& family) {
                           std::string name = family.param;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

// A model whose single decoded token is work enough for a team (core.cpp): one thread and two, the trainer and the two
// ways to score give the same bits, in a batch whose requests come and go.
TEST(Engine, ATeamOfThreadsChangesNoBit) {
  const auto spec = model::spec_from_sizes("qwen3", {.vocab_size = 4096,
                                                     .width = 256,
                                                     .layers = 4,
                                                     .heads = 4,
                                                     .kv_heads = 2,
                                                     .head_dim = 64,
                                                     .ffn_width = 768,
                                                     .context = 128});
  ASSERT_TRUE(spec.has_value());
  ASSERT_GE(spec->parameter_count(), 4 << 20);
  model::Model model = model::Model::create(*spec, 3);
  const int before = kernels::max_threads();
  std::map<int, std::map<SampleId, Completion>> by_threads;
  for (const int threads : {1, 2}) {
    kernels::set_max_threads(threads);
    Engine engine(model, nullptr, {.page_tokens = 16, .kv_pages = 64, .sequences_max = 4, .prefill_tokens = 23});
    for (std::uint32_t sample = 0; sample < 6; ++sample) {
      Request request =
          request_of(1 + sample % 3, sample, 20 + static_cast<int>(sample % 3) * 9, 5 + static_cast<int>(sample));
      if (sample == 4) request.sampling.temperature = 0;
      if (sample == 5) request.sampling.top_k = 40;
      ASSERT_TRUE(engine.submit(std::move(request)).has_value());
    }
    by_threads[threads] = drain(engine);
    ASSERT_EQ(by_threads[threads].size(), 6u);
    for (const auto& [id, completion] : by_threads[threads]) {
      EXPECT_EQ(completion.ids, by_threads[1].at(id).ids);
      EXPECT_EQ(completion.logprobs, by_threads[1].at(id).logprobs);
      if (id.sample >= 4) continue;  // not the distribution that is scored
      const std::vector<std::int32_t> prompt =
          request_of(id.prompt, id.sample, 20 + static_cast<int>(id.sample % 3) * 9).prompt;
      EXPECT_EQ(completion.logprobs, train_scores(model, {{prompt, completion.ids}}, 1).front());
      std::vector<std::int32_t> ids = prompt;
      ids.insert(ids.end(), completion.ids.begin(), completion.ids.end());
      for (const bool decode_path : {false, true}) {
        const auto scored = engine.score(ids, static_cast<std::int32_t>(prompt.size()), 1, decode_path);
        ASSERT_TRUE(scored.has_value());
        EXPECT_EQ(*scored, completion.logprobs);
      }
    }
  }
  kernels::set_max_threads(before);
}

TEST(Engine, ScoreRefusesNonsense) {
  model::Model model = model::Model::create(tiny("qwen3"), 3);
  Engine engine(model, nullptr, small_options());
  const std::vector<std::int32_t> ids{1, 2, 61};
  EXPECT_FALSE(engine.score(ids, 1, 1, false).has_value());
  EXPECT_FALSE(engine.score(std::span(ids).first(2), 0, 1, false).has_value());
  EXPECT_FALSE(engine.score(std::span(ids).first(2), 3, 1, false).has_value());
  EXPECT_FALSE(engine.score(std::span(ids).first(2), 1, 0, false).has_value());
  EXPECT_TRUE(engine.score(std::span(ids).first(2), 2, 1, true)->empty());
}

TEST(Engine, MemoryDecidesThePages) {
  model::Model model = model::Model::create(tiny("qwen3"), 3);
  EngineOptions options;
  options.page_tokens = 16;
  options.kv_memory = {static_cast<std::uint64_t>(model::KvCache::bytes_per_page(model.spec(), 16)) * 5 + 1};
  Engine engine(model, nullptr, options);
  EXPECT_EQ(engine.stats().pages, 5);
  EXPECT_FALSE(engine.submit(request_of(0, 0, 60, 21)).has_value());
  EXPECT_TRUE(engine.submit(request_of(0, 0, 60, 20)).has_value());
  model.set_precision(kernels::Precision::kBfloat16);
  EXPECT_EQ(Engine(model, nullptr, options).stats().pages, 10) << "half as large";
}

}  // namespace
}  // namespace troupe::generate
