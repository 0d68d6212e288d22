#include "generate/core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/generate/fake_forward.h"

namespace troupe::generate {
namespace {

constexpr int kVocabulary = 40;
constexpr PolicyVersion kV0{0, 0}, kV1{0, 1};

CoreOptions options_of(SchedulerOptions scheduler) { return {scheduler, kVocabulary, kVocabulary + 1, 100, 64}; }

struct Rig {
  explicit Rig(SchedulerOptions s = {.pages = 64, .page_tokens = 4, .sequences_max = 16, .prefill_tokens = 16},
               const TextCodec* codec = nullptr, PolicyVersion version = kV0)
      : forward(s.pages, s.page_tokens, kVocabulary), core(forward, codec, options_of(s), version) {}

  void add(Request request) {
    const Status status = core.submit(std::move(request));
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
  }
  std::map<SampleId, Completion> drain() {
    std::map<SampleId, Completion> all;
    for (int i = 0; !core.idle(); ++i) {
      EXPECT_LT(i, 20000);
      for (Completion& c : core.step().finished) {
        const SampleId id = c.id;
        EXPECT_TRUE(all.emplace(id, std::move(c)).second) << "finished twice";
      }
    }
    return all;
  }
  void update(std::uint64_t weights, PolicyVersion version, OnUpdate mode) {
    forward.weights = weights;
    core.weights_changed(version, mode);
  }

  FakeForward forward;
  EngineCore core;
};

Request request_of(std::uint64_t prompt, std::uint32_t sample, int prompt_tokens = 9, int new_tokens = 12,
                   std::uint64_t seed = 7) {
  Request r;
  r.id = {prompt, sample};
  r.group = prompt;
  r.seed = seed;
  for (int i = 0; i < prompt_tokens; ++i)
    r.prompt.push_back(static_cast<std::int32_t>((prompt * 5 + static_cast<std::uint64_t>(i) * 3) % 37));
  r.sampling.max_new_tokens = new_tokens;
  return r;
}

void expect_same(const std::map<SampleId, Completion>& a, const std::map<SampleId, Completion>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [id, c] : a) {
    ASSERT_TRUE(b.contains(id));
    EXPECT_EQ(c.ids, b.at(id).ids) << to_string(id);
    EXPECT_EQ(c.logprobs, b.at(id).logprobs) << to_string(id);
    EXPECT_EQ(c.finish, b.at(id).finish);
  }
}

std::vector<Request> workload() {
  std::vector<Request> all;
  for (std::uint64_t p = 0; p < 5; ++p)
    for (std::uint32_t s = 0; s < 4; ++s)
      all.push_back(request_of(p, s, 3 + static_cast<int>(p) * 4, 5 + static_cast<int>(3 * s)));
  return all;
}

std::map<SampleId, Completion> run(SchedulerOptions options) {
  Rig rig(options);
  for (Request& r : workload()) rig.add(std::move(r));
  auto all = rig.drain();
  rig.core.weights_changed(kV1, OnUpdate::kKeepKv);  // drops the kept prompts
  EXPECT_EQ(rig.core.stats().pages_used, 0);
  return all;
}

TEST(EngineCore, LogitsReachTheSamplerUnmixed) {
  Rig rig;
  rig.add(request_of(0, 0));
  const Completion c = rig.drain().begin()->second;
  std::vector<std::int32_t> ids = request_of(0, 0).prompt;
  Sampler sampler;
  const Rng rng(7, RngStream::kSampling, 0, 0);
  for (std::size_t i = 0; i < c.ids.size(); ++i) {
    const auto logits = rig.forward.expected(ids, 1);
    const Sampled s = sampler.sample(std::span(logits).first(kVocabulary), {}, rng.uniform_at(i));
    EXPECT_EQ(c.ids[i], s.id);
    EXPECT_EQ(c.logprobs[i], s.logprob);
    ids.push_back(s.id);
  }
  EXPECT_EQ(c.ids.size(), 12u);
  EXPECT_EQ(c.finish, Finish::kLength);
  EXPECT_EQ(c.versions, std::vector<PolicyVersion>(12, kV0));
}

// Chunk size, page size, sharing, batch size and preemption leave no trace in a completion (S22).
TEST(EngineCore, ResultsDoNotDependOnScheduling) {
  const auto reference =
      run({.pages = 400, .page_tokens = 4, .sequences_max = 1, .prefill_tokens = 64, .cached_prompts_max = 0});
  for (const int chunk : {1, 3, 8, 64})
    for (const int page : {1, 3, 4, 16})
      for (const int cached : {0, 2, 64}) {
        SCOPED_TRACE(testing::Message() << "chunk " << chunk << " page " << page << " cached " << cached);
        expect_same(reference, run({.pages = 800 / page,
                                    .page_tokens = page,
                                    .sequences_max = 16,
                                    .prefill_tokens = chunk,
                                    .cached_prompts_max = cached}));
      }
}

TEST(EngineCore, PreemptionLeavesNoTrace) {
  const auto reference = run({.pages = 400, .page_tokens = 4, .sequences_max = 1, .prefill_tokens = 64});
  for (const int pages : {9, 10, 12, 15}) {
    SCOPED_TRACE(pages);
    const SchedulerOptions tight{.pages = pages, .page_tokens = 4, .sequences_max = 16, .prefill_tokens = 16};
    expect_same(reference, run(tight));
    Rig rig(tight);
    for (Request& r : workload()) rig.add(std::move(r));
    rig.drain();
    EXPECT_GT(rig.core.stats().preemptions, 0u);
  }
}

// S02: eight samples of one prompt over 1, 2 and 4 engines.
TEST(EngineCore, SamplesDoNotDependOnTheEngineAndAreDistinct) {
  const auto sampled = [](int engines, std::uint64_t seed) {
    std::vector<std::unique_ptr<Rig>> rigs;
    for (int e = 0; e < engines; ++e) rigs.push_back(std::make_unique<Rig>());
    for (std::uint32_t s = 0; s < 8; ++s)
      rigs[s % static_cast<std::uint32_t>(engines)]->add(request_of(3, s, 9, 12, seed));
    std::map<SampleId, Completion> all;
    for (auto& rig : rigs)
      for (auto& [id, c] : rig->drain()) all.emplace(id, std::move(c));
    return all;
  };
  const auto one = sampled(1, 7);
  expect_same(one, sampled(2, 7));
  expect_same(one, sampled(4, 7));
  std::set<std::vector<std::int32_t>> distinct;
  for (const auto& [id, c] : one) distinct.insert(c.ids);
  EXPECT_EQ(distinct.size(), 8u);
  for (const auto& [id, c] : sampled(1, 8))
    EXPECT_NE(c.ids, one.at(id).ids) << "another run seed must change every sample";
}

TEST(EngineCore, AGroupsPromptIsComputedOnce) {
  Rig rig({.pages = 64, .page_tokens = 4, .sequences_max = 16, .prefill_tokens = 64});
  for (std::uint32_t s = 0; s < 8; ++s) rig.add(request_of(1, s, 21, 2));
  rig.drain();
  EXPECT_EQ(rig.forward.rows_run, 21 + 7 * 1 + 8 * 1);  // the prompt, its last token for each sibling, one decode each
  EXPECT_EQ(rig.core.stats().tokens_shared, 7u * 20);
}

TEST(EngineCore, AContinuedSampleGivesTheSameRemainder) {
  Rig whole;
  whole.add(request_of(2, 1, 9, 20));
  const Completion expected = whole.drain().begin()->second;
  for (int cut = 0; cut < 20; ++cut) {
    Rig first;
    first.add(request_of(2, 1, 9, 20));
    int sampled = 0;
    while (sampled < cut) sampled += first.core.step().sampled;
    const auto part = first.core.abort({2, 1});
    ASSERT_TRUE(part.has_value());
    EXPECT_EQ(part->finish, Finish::kAborted);
    ASSERT_EQ(part->ids.size(), static_cast<std::size_t>(cut));
    EXPECT_EQ(part->logprobs.size(), part->ids.size());
    EXPECT_EQ(part->versions.size(), part->ids.size());
    EXPECT_TRUE(first.core.idle());
    Rig second;
    Request rest = request_of(2, 1, 9, 20);
    rest.prefix = prefix_of(*part);
    second.add(std::move(rest));
    const Completion c = second.drain().begin()->second;
    EXPECT_EQ(c.ids, expected.ids) << cut;
    EXPECT_EQ(c.logprobs, expected.logprobs) << cut;
  }
}

TEST(EngineCore, APrefixThatIsCompleteEndsAtOnce) {
  Rig rig;
  Request r = request_of(0, 0, 5, 3);
  r.prefix = {{1, 2, 3}, {-1, -1, -1}, {kV0, kV0, kV0}, kV0};
  rig.add(std::move(r));
  EXPECT_FALSE(rig.core.idle());
  const auto all = rig.drain();
  EXPECT_EQ(all.at({0, 0}).finish, Finish::kLength);
  EXPECT_EQ(rig.forward.runs, 0);
}

// S05: after an update nothing that old weights computed serves a new request.
TEST(EngineCore, NewRequestsNeverUseEntriesOfOldWeights) {
  for (const OnUpdate mode : {OnUpdate::kKeepKv, OnUpdate::kRecomputeKv}) {
    Rig cold;
    cold.update(2, kV1, mode);
    for (std::uint32_t s = 0; s < 4; ++s) cold.add(request_of(1, 10 + s));
    const auto expected = cold.drain();

    Rig warm;
    for (std::uint32_t s = 0; s < 4; ++s) warm.add(request_of(1, s));
    for (int i = 0; i < 4; ++i) warm.core.step();  // still running at the update
    warm.update(2, kV1, mode);
    for (std::uint32_t s = 0; s < 4; ++s) warm.add(request_of(1, 10 + s));
    auto all = warm.drain();
    for (std::uint32_t s = 0; s < 4; ++s) all.erase({1, s});
    expect_same(expected, all);
    for (const auto& [id, c] : all) EXPECT_EQ(c.kv_oldest, kV1);
  }
}

TEST(EngineCore, EveryTokenCarriesTheVersionThatSampledIt) {
  for (const OnUpdate mode : {OnUpdate::kKeepKv, OnUpdate::kRecomputeKv}) {
    Rig rig({.pages = 64, .page_tokens = 4, .sequences_max = 4, .prefill_tokens = 64});
    rig.add(request_of(1, 0, 9, 10));
    for (int i = 0; i < 4; ++i) rig.core.step();
    rig.update(2, kV1, mode);
    const Completion c = rig.drain().at({1, 0});
    std::vector<PolicyVersion> versions(10, kV1);
    std::fill_n(versions.begin(), 4, kV0);
    EXPECT_EQ(c.versions, versions);
    EXPECT_EQ(c.kv_oldest, kV0);  // the first four were sampled from old entries in either mode

    std::vector<std::int32_t> ids =
        request_of(1, 0, 9, 10).prompt;  // what a cold engine would sample next from the same tokens
    ids.insert(ids.end(), c.ids.begin(), c.ids.begin() + 4);
    const auto logits = rig.forward.expected(ids, 2);
    Sampler sampler;
    const Sampled exact =
        sampler.sample(std::span(logits).first(kVocabulary), {}, Rng(7, RngStream::kSampling, 1, 0).uniform_at(4));
    EXPECT_EQ(c.logprobs[4] == exact.logprob && c.ids[4] == exact.id, mode == OnUpdate::kRecomputeKv);
  }
}

// V10: the finish reason is the sampler's; all stop ids count, the stop token stays in the ids.
TEST(EngineCore, StopIdsEndWithTheirToken) {
  Rig plain;
  plain.add(request_of(4, 0, 9, 12));
  const std::vector<std::int32_t> ids = plain.drain().begin()->second.ids;
  for (std::size_t at : {0u, 3u, 11u}) {
    Rig rig;
    Request r = request_of(4, 0, 9, 12);
    r.sampling.stop_ids = {39, ids[at]};
    const auto first = static_cast<std::size_t>(
        std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id == ids[at] || id == 39; }) - ids.begin());
    rig.add(std::move(r));
    const Completion c = rig.drain().begin()->second;
    EXPECT_EQ(c.ids, std::vector<std::int32_t>(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(first) + 1));
    EXPECT_EQ(c.logprobs.size(), c.ids.size());
    EXPECT_EQ(c.finish, Finish::kStop);
    EXPECT_EQ(c.text_tokens_kept, c.ids.size() - 1);
  }
}

std::vector<std::string> letters() {
  std::vector<std::string> pieces;
  for (int i = 0; i < kVocabulary; ++i)
    pieces.push_back(std::string(1, static_cast<char>('0' + i)) + (i % 3 == 0 ? "x" : ""));
  return pieces;
}

// S11: a stop string cuts the text; ids, log-probs and versions stay complete and equally long, and what the text holds
// is declared.
TEST(EngineCore, StopStringsCutTheTextNotTheIds) {
  const FakeCodec codec(letters());
  Rig plain({.pages = 64, .page_tokens = 4, .sequences_max = 4, .prefill_tokens = 16}, &codec);
  plain.add(request_of(6, 0, 9, 30));
  const Completion full = plain.drain().begin()->second;
  EXPECT_EQ(full.text, codec.decode(full.ids));
  EXPECT_EQ(full.text_tokens_kept, full.ids.size());
  for (std::size_t begin = 0; begin + 3 < full.text.size(); ++begin)
    for (const std::size_t length : {1u, 2u, 3u}) {
      const std::string stop = full.text.substr(begin, length);
      Rig rig({.pages = 64, .page_tokens = 4, .sequences_max = 4, .prefill_tokens = 16}, &codec);
      Request r = request_of(6, 0, 9, 30);
      r.sampling.stop_strings = {"never here", stop};
      rig.add(std::move(r));
      const Completion c = rig.drain().begin()->second;
      EXPECT_EQ(c.finish, Finish::kStop);
      EXPECT_EQ(c.text, full.text.substr(0, full.text.find(stop)));
      EXPECT_TRUE(std::equal(c.ids.begin(), c.ids.end(), full.ids.begin()));
      EXPECT_EQ(c.logprobs.size(), c.ids.size());
      EXPECT_EQ(c.versions.size(), c.ids.size());
      const std::span<const std::int32_t> ids(c.ids);
      EXPECT_NE(codec.decode(ids).find(stop), std::string::npos);
      EXPECT_EQ(codec.decode(ids.first(ids.size() - 1)).find(stop), std::string::npos)
          << "stops as soon as the string is complete";
      EXPECT_EQ(codec.decode(ids.first(c.text_tokens_kept)), c.text.substr(0, c.text_bytes_kept));
      EXPECT_FALSE(c.text.starts_with(codec.decode(ids.first(c.text_tokens_kept + 1))))
          << "no token of the text is left out";
    }
}

// S12: characters that span tokens neither hide a stop string nor end up halved in the text.
TEST(EngineCore, StopStringsAcrossSplitCharacters) {
  std::vector<std::string> pieces(kVocabulary, "a");
  for (int i = 0; i < kVocabulary; ++i) pieces[static_cast<std::size_t>(i)] = i % 2 == 0 ? "\xE4\xB8" : "\x96";
  const FakeCodec codec(pieces);
  Rig rig({.pages = 64, .page_tokens = 4, .sequences_max = 4, .prefill_tokens = 16}, &codec);
  Request r = request_of(1, 0, 5, 1);
  // The prefix brings the characters in a known order: "世世" then half of one.
  r.sampling.max_new_tokens = 8;
  r.sampling.stop_strings = {"\xE4\xB8\x96\xE4\xB8\x96"};
  r.prefix.ids = {0, 1, 0, 1};
  r.prefix.logprobs.assign(4, -1.0F);
  r.prefix.versions.assign(4, kV0);
  rig.add(r);
  Completion c = rig.drain().begin()->second;
  EXPECT_EQ(c.finish, Finish::kStop);
  EXPECT_EQ(c.text, "");
  EXPECT_EQ(c.text_tokens_kept, 0u);
  EXPECT_EQ(c.ids.size(), 4u);

  r.prefix.ids = {0, 1, 0};
  r.prefix.logprobs.resize(3);
  r.prefix.versions.resize(3);
  r.sampling.stop_strings = {"\xE4\xB8\x96"};
  rig.add(r);
  c = rig.drain().begin()->second;
  EXPECT_EQ(c.text_bytes_kept, 0u);
  EXPECT_EQ(c.text, "");
}

TEST(EngineCore, OneBadRequestHarmsNoOther) {
  const auto with = [](std::int32_t poison, bool throws, bool nan) {
    Rig rig;
    if (throws) rig.forward.throws_on = poison;
    if (nan) rig.forward.nan_on = poison;
    for (std::uint32_t s = 0; s < 3; ++s) rig.add(request_of(1, s, 9, 6));
    Request bad = request_of(2, 0, 4, 6);
    bad.prompt.back() = poison;
    rig.add(std::move(bad));
    auto all = rig.drain();
    EXPECT_EQ(rig.core.stats().errors, throws || nan ? 1u : 0u);
    return all;
  };
  auto reference = with(0, false, false);
  const std::vector<std::int32_t> good_prompt = request_of(1, 0).prompt;
  std::set<std::int32_t> used(good_prompt.begin(), good_prompt.end());
  for (std::uint32_t s = 0; s < 3; ++s) used.insert(reference.at({1, s}).ids.begin(), reference.at({1, s}).ids.end());
  reference.erase({2, 0});
  std::int32_t poison = 0;  // an id that the good ones never have
  while (used.contains(poison)) ++poison;
  ASSERT_LT(poison, kVocabulary);
  const auto thrown = with(poison, true, false), nan = with(poison, false, true);
  EXPECT_EQ(thrown.at({2, 0}).error, "poisoned id");
  EXPECT_EQ(nan.at({2, 0}).error, "sample 2/0: the logits of token 0 are not finite; the weights e0.s0 have diverged");
  for (auto all : {thrown, nan}) {
    EXPECT_EQ(all.at({2, 0}).finish, Finish::kError);
    all.erase({2, 0});
    expect_same(reference, all);
  }
}

TEST(EngineCore, RefusesWhatCannotWorkInOneSentence) {
  Rig rig({.pages = 10, .page_tokens = 4, .sequences_max = 4, .prefill_tokens = 16});
  const auto message = [&](const Request& r) {
    const Status status = rig.core.submit(r);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(message(request_of(0, 0, 100, 1)),
            "sample 0/0: the prompt has 100 tokens, but the context holds 100 with the completion; shorten the prompt "
            "or raise context_tokens");
  EXPECT_EQ(message(request_of(0, 0, 30, 11)),
            "sample 0/0: a prompt of 30 tokens and up to 11 new ones need 11 pages of KV cache, but there are 10; "
            "raise kv_memory or lower max_new_tokens");
  EXPECT_EQ(message(request_of(0, 0, 0, 1)), "sample 0/0: the prompt is empty");
  Request r = request_of(0, 0);
  r.prompt[2] = 40;
  EXPECT_EQ(message(r),
            "sample 0/0: prompt token 2 is 40, but the model's vocabulary has ids 0 to 39; tokenizer and model do not "
            "belong together");
  r = request_of(0, 0);
  r.prefix.ids = {1};
  EXPECT_EQ(message(r), "sample 0/0: the prefix has 1 ids, but 0 log-probs and 0 versions");
  r = request_of(0, 0);
  r.sampling.stop_strings = {"x"};
  EXPECT_EQ(message(r), "sample 0/0: stop strings need a tokenizer, and there is none");
  EXPECT_TRUE(rig.core.idle());

  rig.add(request_of(0, 0, 30, 10));  // exactly fits
  EXPECT_EQ(rig.core.submit(request_of(0, 0)).error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(rig.core.abort({9, 9}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(rig.drain().begin()->second.ids.size(), 10u);
}

TEST(EngineCore, TheContextCutsByLength) {
  Rig rig;
  rig.add(request_of(0, 0, 95, 50));
  const Completion c = rig.drain().begin()->second;
  EXPECT_EQ(c.ids.size(), 5u);
  EXPECT_EQ(c.finish, Finish::kLength);
}

TEST(EngineCore, TheQueueHasALimit) {
  Rig rig({.pages = 64, .page_tokens = 4, .sequences_max = 1, .prefill_tokens = 16});
  for (std::uint32_t s = 0; s < 64; ++s) rig.add(request_of(0, s));
  EXPECT_EQ(rig.core.submit(request_of(0, 64)).error().code, ErrorCode::kResourceExhausted);
}

TEST(EngineCore, AbortsGiveBackEverything) {
  Rig rig;
  for (std::uint64_t p = 0; p < 4; ++p)
    for (std::uint32_t s = 0; s < 8; ++s) rig.add(request_of(p, s));
  for (int i = 0; i < 3; ++i) rig.core.step();
  EXPECT_EQ(rig.core.abort_group(2).size(), 8u);
  EXPECT_TRUE(rig.core.abort_group(2).empty());
  rig.core.step();
  EXPECT_EQ(rig.core.abort_all().size(), 24u);
  EXPECT_TRUE(rig.core.idle());
  rig.core.weights_changed(kV1, OnUpdate::kKeepKv);
  EXPECT_EQ(rig.core.stats().pages_used, 0);
  EXPECT_EQ(rig.core.stats().aborted, 32u);
}

// Guesses, right or wrong, change how many steps it takes and nothing else.
TEST(EngineCore, GuessesChangeNoResult) {
  const auto play = [](std::optional<std::uint64_t> wrong, bool stateful, int pages, bool fails) {
    SchedulerOptions scheduler{.pages = pages, .page_tokens = 4, .sequences_max = 16, .prefill_tokens = 5};
    scheduler.stateful = stateful;
    CoreOptions options = options_of(scheduler);
    options.drafts = wrong.has_value();
    FakeForward forward(pages, scheduler.page_tokens, kVocabulary);
    forward.wrong_percent = wrong.value_or(0);
    forward.guess_fails = fails;
    EngineCore core(forward, nullptr, options, kV0);
    for (Request& r : workload()) {
      r.sampling.stop_ids = {3, 17};
      EXPECT_TRUE(core.submit(std::move(r)).has_value());
    }
    std::map<SampleId, Completion> all;
    while (!core.idle())
      for (Completion& c : core.step().finished) all.emplace(c.id, std::move(c));
    return std::pair(std::move(all), core.stats());
  };
  for (const bool stateful : {false, true})
    for (const int pages : {200, 14}) {
      const auto [expected, without] = play(std::nullopt, stateful, pages, false);
      EXPECT_EQ(without.drafts, 0u);
      for (const std::uint64_t wrong : {0u, 50u, 100u}) {
        SCOPED_TRACE(std::to_string(wrong) + " % wrong, " + std::to_string(pages) + " pages" + (stateful ? ", with states" : ""));
        const auto [got, with] = play(wrong, stateful, pages, false);
        expect_same(got, expected);
        EXPECT_GT(with.drafts, 0u);
        if (wrong == 0) EXPECT_EQ(with.drafts_accepted, with.drafts);
        if (wrong == 100) EXPECT_LT(with.drafts_accepted, with.drafts / 4);
        if (wrong == 50) EXPECT_GT(with.drafts_accepted, with.drafts / 4);
        EXPECT_EQ(with.tokens_sampled, without.tokens_sampled);
      }
      const auto [got, with] = play(0, stateful, pages, true);
      expect_same(got, expected);
      EXPECT_EQ(with.drafts, 0u);
    }
}

TEST(EngineCore, RightGuessesHalveTheSteps) {
  for (const bool drafts : {false, true}) {
    CoreOptions options = options_of({.pages = 64, .page_tokens = 4, .sequences_max = 16, .prefill_tokens = 16});
    options.drafts = drafts;
    FakeForward forward(64, 4, kVocabulary);
    EngineCore core(forward, nullptr, options, kV0);
    ASSERT_TRUE(core.submit(request_of(1, 0, 9, 41)).has_value());
    while (!core.idle()) core.step();
    EXPECT_EQ(core.stats().tokens_sampled, 41u);
    EXPECT_EQ(core.stats().steps, drafts ? 21u : 41u);
  }
}

// A sample that is taken out between a guess and its check goes on elsewhere as if nobody had guessed.
TEST(EngineCore, AGuessIsNotPartOfASample) {
  Request whole = request_of(1, 2, 9, 16);
  Rig plain;
  plain.add(whole);
  const Completion expected = plain.drain().at({1, 2});
  for (int steps = 2; steps < 9; ++steps) {
    const SchedulerOptions scheduler{.pages = 64, .page_tokens = 4, .sequences_max = 16, .prefill_tokens = 16};
    CoreOptions options = options_of(scheduler);
    options.drafts = true;
    FakeForward forward(64, 4, kVocabulary);
    forward.wrong_percent = 30;
    EngineCore first(forward, nullptr, options, kV0);
    ASSERT_TRUE(first.submit(whole).has_value());
    for (int i = 0; i < steps; ++i) first.step();
    const auto taken = first.abort({1, 2});
    ASSERT_TRUE(taken.has_value());
    Request rest = whole;
    rest.prefix = prefix_of(*taken);
    Rig second;
    second.add(rest);
    const Completion c = second.drain().at({1, 2});
    EXPECT_EQ(c.ids, expected.ids);
    EXPECT_EQ(c.logprobs, expected.logprobs);
  }
}

}  // namespace
}  // namespace troupe::generate
