// Runs that write conversations by the model's own template (V12, S06, S14): what was sampled stays, what is shown otherwise begins anew, and a call
// of a tool that is cut off is told to the policy and not to the task.
#include <map>

#include "actors/rollout/bench.h"

namespace troupe::actors {
namespace {

using test::Bench;
using test::group_of;
using test::handed_over;
using test::small_options;
using test::small_policy;
using Ids = std::vector<std::int32_t>;

const std::string kShowsAll =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const std::string kHidesWhatWasSaid =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role != 'assistant' %}{{ m.content }}{% else %}(said){% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

data::FormatSource by(const std::string& jinja) { return {"template", jinja, {}}; }

TEST(TemplateRuns, ATemplateThatShowsEverythingIsTheSameAsItsFormat) {
  Bench chatml, templated(small_options(), small_policy(by(kShowsAll)));
  for (Bench* bench : {&chatml, &templated}) {
    bench->work.take(group_of(5, {0, 1, 2}));
    bench->run();
  }
  const auto expected = chatml.results(), results = templated.results();
  ASSERT_EQ(results.size(), 3u);
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].ids, expected[i].ids);
    EXPECT_EQ(results[i].sampled, expected[i].sampled);
    EXPECT_EQ(results[i].logprobs, expected[i].logprobs);
    EXPECT_TRUE(results[i].starts.empty());
  }
}

/// The contexts of a sample, whole: prompt or not, and which tokens were sampled.
std::vector<std::pair<Ids, std::vector<std::uint8_t>>> contexts(const Ids& prompt, const SampleResult& result) {
  std::vector<std::pair<Ids, std::vector<std::uint8_t>>> all;
  for (std::size_t k = 0; k <= result.starts.size(); ++k) {
    const auto from = static_cast<std::ptrdiff_t>(k == 0 ? 0 : result.starts[k - 1]);
    const auto to = static_cast<std::ptrdiff_t>(k == result.starts.size() ? result.ids.size() : result.starts[k]);
    Ids ids = k == 0 ? prompt : Ids{};
    std::vector<std::uint8_t> sampled(ids.size(), 0);
    ids.insert(ids.end(), result.ids.begin() + from, result.ids.begin() + to);
    sampled.insert(sampled.end(), result.sampled.begin() + from, result.sampled.begin() + to);
    all.emplace_back(std::move(ids), std::move(sampled));
  }
  return all;
}

TEST(TemplateRuns, WhatIsShownOtherwiseBeginsASampleOfItsOwn) {
  Bench bench(small_options(), small_policy(by(kHidesWhatWasSaid)));
  bench.work.take(group_of(5, {0}));
  bench.run();
  const auto results = bench.results();
  ASSERT_EQ(results.size(), 1u);
  ASSERT_EQ(results[0].starts.size(), 2u) << "three turns, three contexts";
  const auto all = contexts(bench.done[0].prompt_ids, results[0]);
  std::size_t at = 0;
  for (const auto& [ids, sampled] : all) {
    EXPECT_EQ(sampled.front(), 0);
    EXPECT_EQ(sampled.back(), 1) << "each ends with what the policy said in it";
    EXPECT_EQ(std::count_if(sampled.begin() + 1, sampled.end(), [last = sampled[0]](std::uint8_t s) mutable { return s != std::exchange(last, s); }), 1) << "and with nothing else of it";
  }
  // The log-probs are those of each context by itself: what the trainer will compute.
  for (std::size_t k = 0; k < all.size(); ++k) {
    const auto first = static_cast<std::int32_t>(std::find(all[k].second.begin(), all[k].second.end(), 1) - all[k].second.begin());
    const auto scored = bench.work.score({7, {}, 0, {ProbeSequence{all[k].first, first}}});
    ASSERT_TRUE(scored) << scored.error().message;
    const std::size_t begin = k == 0 ? 0 : results[0].starts[k - 1], prompt = k == 0 ? bench.done[0].prompt_ids.size() : 0;
    for (std::size_t i = 0; i < scored->prefill[0].size(); ++i, ++at) EXPECT_EQ(scored->prefill[0][i], results[0].logprobs[begin + static_cast<std::size_t>(first) - prompt + i]);
  }
  EXPECT_EQ(at, static_cast<std::size_t>(std::count(results[0].sampled.begin(), results[0].sampled.end(), 1)));
}

// S06: rows are the positions that were fed to the model, each once, wherever the episode was interrupted.
TEST(TemplateRuns, AnEpisodeThatIsHandedBackHasEveryTokenOnce) {
  for (const std::string& jinja : {kShowsAll, kHidesWhatWasSaid}) {
    Bench whole(small_options(), small_policy(by(jinja)));
    whole.work.take(group_of(5, {0, 1}));
    whole.run();
    const auto expected = whole.results();
    ASSERT_EQ(expected.size(), 2u);
    for (const int steps : {1, 5, 13, 17, 25, 30}) {
      SCOPED_TRACE(steps);
      const auto results = handed_over([&] { return Bench(small_options(), small_policy(by(jinja))); }, group_of(5, {0, 1}), steps);
      if (results.empty()) continue;
      ASSERT_EQ(results.size(), 2u);
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(results[i].ids, expected[i].ids) << steps;
        EXPECT_EQ(results[i].sampled, expected[i].sampled) << steps;
        EXPECT_EQ(results[i].starts, expected[i].starts) << steps;
        EXPECT_EQ(results[i].logprobs, expected[i].logprobs) << steps;
      }
    }
  }
}

// A prompt of 4, 3 tokens, then 2 more elsewhere: 9 positions, 5 of them sampled.
TEST(TemplateRuns, SegmentsOfOneTurnAreNotCountedTwice) {
  const SamplePrefix prefix{{}, {5, 6, 7}, {-1, -1, -1}, {{0, 1}, {0, 1}, {0, 1}}, {0, 1}};
  const generate::Request request = request_of(Ids{1, 2, 3, 4}, prefix);
  EXPECT_EQ(request.prompt, (Ids{1, 2, 3, 4}));
  EXPECT_EQ(request.prefix.ids.size(), 3u);
  EXPECT_EQ(request.first_position, 0u) << "the prefix's own positions are the engine's to count";
  generate::Completion said;
  said.ids = {5, 6, 7, 8, 9}; // an engine gives the prefix back
  said.logprobs.assign(5, -1);
  said.versions.assign(5, {0, 1});
  EXPECT_EQ(result_of(prefix.turns, said).ids, (Ids{5, 6, 7, 8, 9}));
}

// S14. Few tokens, so that the tiny model opens calls all the time and never writes one that is whole.
TEST(TemplateRuns, ACallThatIsCutOffIsToldToThePolicyAndNotToTheTask) {
  data::VocabularyOptions few;
  few.kind = "characters";
  few.alphabet = "ab";
  few.added = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"};
  const std::string knows_calls = kShowsAll + "{# <tool_call> #}";
  RolloutWorkerOptions options = small_options();
  options.turns_max = 4;
  options.stages[0].train.temperature = 20; // all tokens about alike
  Bench bench(options, small_policy(by(knows_calls), few));
  bench.turns = 1;
  bench.work.take(group_of(5, {0, 1, 2, 3, 4, 5, 6, 7}));
  std::map<std::size_t, int> told; // by replies
  bench.run([&] {
    for (const EnvironmentCall& call : bench.calls) ++told[call.replies.size()];
    return false;
  });
  EXPECT_TRUE(bench.failed.empty());
  const auto results = bench.results();
  ASSERT_EQ(results.size(), 8u);
  int turns_of_errors = 0;
  for (const SampleResult& result : results) {
    EXPECT_EQ(result.reward, 0.25) << "the task has seen one reply, whatever went before it";
    if (result.sampled.empty()) continue;
    std::uint8_t last = 1;
    for (const std::uint8_t s : result.sampled) turns_of_errors += std::exchange(last, s) == 1 && s == 0;
  }
  EXPECT_GT(turns_of_errors, 3);
  for (const auto& [replies, count] : told) EXPECT_LE(replies, 1u);
}

// The tools that a task offers are in the prompt, and a call reaches the task as one. The tiny model says whole calls because one is a single token.
TEST(TemplateRuns, ToolsAreShownToThePolicyAndItsCallsReachTheTask) {
  const std::string call = R"(<tool_call>{"name": "ab", "arguments": {"at": "a"}}</tool_call>)";
  data::VocabularyOptions few;
  few.kind = "characters";
  few.alphabet = "ab";
  few.added = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", call};
  const std::string shows_tools = "{% for t in tools %}{{ t.function.name }}{% endfor %}" + kShowsAll + "{# <tool_call> #}";
  RolloutWorkerOptions options = small_options();
  options.stages[0].train.temperature = 20; // all tokens about alike
  const auto make = [&] { return Bench(options, small_policy(by(shows_tools), few), R"([{"type": "function", "function": {"name": "ab"}}])"); };
  Bench bench = make();
  bench.work.take(group_of(5, {0, 1, 2, 3, 4, 5, 6, 7}));
  int calls = 0, plain = 0;
  bench.run([&] {
    for (const EnvironmentCall& asked : bench.calls)
      for (const data::Message& reply : asked.replies) {
        ++(reply.more.empty() ? plain : calls);
        if (reply.more.empty()) continue;
        EXPECT_THAT(reply.more, testing::HasSubstr(R"({"name":"ab","arguments":{"at":"a"}})"));
        EXPECT_THAT(reply.more, testing::HasSubstr(R"("answer":)"));
      }
    return false;
  });
  EXPECT_TRUE(bench.failed.empty());
  EXPECT_GT(calls, 5);
  EXPECT_GT(plain, 0);
  ASSERT_EQ(bench.results().size(), 8u);
  const Ids prompt = bench.done[0].prompt_ids;
  EXPECT_THAT(small_policy(by(shows_tools), few).tokenizer.decode(prompt), testing::StartsWith("ab<|im_start|>"));
  const auto handed = handed_over(make, group_of(5, {0, 1, 2, 3, 4, 5, 6, 7}), 9), results = bench.results();
  ASSERT_EQ(handed.size(), results.size());
  for (std::size_t i = 0; i < results.size(); ++i) EXPECT_EQ(handed[i].ids, results[i].ids) << "handed over in the midst";
}

TEST(TemplateRuns, ToolsThatNoFormatCanShowAreRefused) {
  Bench bench(small_options(), small_policy(), R"([{"type": "function", "function": {"name": "look"}}])");
  bench.work.take(group_of(5, {0, 1}));
  bench.run();
  ASSERT_EQ(bench.failed.size(), 1u);
  EXPECT_EQ(bench.failed[0].error.code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(bench.failed[0].error.message, testing::HasSubstr("the prompt format \"chatml\" cannot show any"));
}

TEST(TemplateRuns, ATemplateThatRefusesThePromptFailsTheSamplesInWords) {
  Bench bench(small_options(), small_policy(by("{{ raise_exception('no users here') }}")));
  bench.work.take(group_of(5, {0, 1}));
  bench.run();
  ASSERT_EQ(bench.failed.size(), 1u);
  EXPECT_EQ(bench.failed[0].samples.size(), 2u);
  EXPECT_THAT(bench.failed[0].error.message, testing::HasSubstr("no users here"));
}

} // namespace
} // namespace troupe::actors
