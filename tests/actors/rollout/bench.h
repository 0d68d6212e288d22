/// @file
/// A rollout worker without processes, and a task that answers it.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>

#include "actors/rollout/rollout_work.h"
#include "data/bpe_trainer.h"

namespace troupe::actors::test {

/// A tiny model with opinions; every byte a token unless `vocabulary` says otherwise.
inline Policy small_policy(const data::FormatSource& source = {"chatml", {}, {}}, const data::VocabularyOptions& vocabulary = {}) {
  auto tokenizer = data::make_vocabulary(vocabulary);
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  auto format = data::PromptFormat::create(source, *tokenizer);
  EXPECT_TRUE(format) << format.error().message;
  model::DecoderSizes sizes;
  sizes.vocab_size = tokenizer->vocab_size();
  sizes.width = 32, sizes.layers = 1, sizes.heads = 2, sizes.kv_heads = 1, sizes.ffn_width = 32, sizes.context = 512;
  sizes.init_std = 0.5;
  auto spec = model::spec_from_sizes("qwen3", sizes);
  EXPECT_TRUE(spec) << spec.error().message;
  return {std::move(*tokenizer), std::move(*format), model::Model::create(*spec, 3)};
}

inline RolloutWorkerOptions small_options() {
  RolloutWorkerOptions options;
  options.seed = 11;
  options.engine.kv_memory = Bytes{4 << 20};
  RolloutStage stage;
  stage.train.max_new_tokens = 12;
  stage.eval = stage.train;
  stage.eval.temperature = 0;
  options.stages = {stage};
  return options;
}

inline GroupWork group_of(std::uint64_t prompt, std::vector<std::uint32_t> samples) {
  GroupWork work;
  work.prompt = prompt;
  for (const std::uint32_t index : samples) work.samples.push_back({{prompt, index}, 1, {}});
  return work;
}

/// A worker, and a task beside it: "n words please", told apart by the number of replies so far. Ends after `turns` replies; each earns 0.25.
struct Bench {
  explicit Bench(RolloutWorkerOptions o = small_options(), Policy p = small_policy(), std::string offers = {})
      : options(std::move(o)), policy(std::move(p)), tools(std::move(offers)) {}
  Bench(const Bench&) = delete;
  RolloutWorkerOptions options;
  Policy policy; // until the worker has it
  std::string tools; // that the task offers
  std::size_t turns = 3;
  std::vector<EnvironmentCall> calls; // not answered yet
  std::vector<std::size_t> replies_seen;
  std::vector<SamplesDone> done;
  std::vector<SamplesFailed> failed;
  std::vector<Drained> drained;
  RolloutWork work{options, std::move(policy), "rollout/0", 0,
                   {[this](EnvironmentCalls m) { calls.insert(calls.end(), m.calls.begin(), m.calls.end()); },
                    [this](SamplesDone m) { done.push_back(std::move(m)); }, [this](SamplesFailed m) { failed.push_back(std::move(m)); },
                    [](WorkRefused) {}, [this](Drained m) { drained.push_back(std::move(m)); }}};

  EnvironmentReply reply_to(const EnvironmentCall& call) const {
    EnvironmentReply reply;
    reply.call = call.call;
    reply.ok = true;
    reply.reward = call.replies.empty() ? 0 : 0.25;
    reply.done = call.replies.size() == turns;
    if (!reply.done) reply.messages = {{"user", "say " + std::to_string(call.replies.size()), {}}};
    if (call.replies.empty()) reply.tools = tools;
    return reply;
  }
  void answer_calls() {
    EnvironmentReplies replies{"rollout/0", 0, {}};
    for (const EnvironmentCall& call : calls) {
      replies_seen.push_back(call.replies.size());
      replies.replies.push_back(reply_to(call));
    }
    calls.clear();
    work.answer(std::move(replies));
  }
  /// Until nothing moves, or `stop` says so between two steps.
  void run(const std::function<bool()>& stop = [] { return false; }) {
    for (int i = 0; i < 2000 && !stop(); ++i) {
      const bool computed = work.advance();
      if (!computed && calls.empty()) return;
      if (!stop()) answer_calls();
    }
  }
  std::vector<SampleResult> results() const {
    std::vector<SampleResult> all;
    for (const SamplesDone& message : done) all.insert(all.end(), message.samples.begin(), message.samples.end());
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    return all;
  }
};

/// What comes of a group that one worker hands back after `steps` and another goes on with; empty when nothing was left to hand back.
/// `make` gives a worker.
template <class Make>
std::vector<SampleResult> handed_over(Make make, const GroupWork& group, int steps) {
  Bench first = make();
  first.work.take(group);
  first.run([&] { return steps-- <= 0; });
  if (first.results().size() == group.samples.size()) return {};
  first.work.drain(Duration{0});
  EXPECT_EQ(first.drained.size(), 1u);
  Bench second = make();
  for (const SamplesDone& message : first.done) second.done.push_back(message);
  for (GroupWork work : first.drained.at(0).handed_back) second.work.take(work);
  second.run();
  EXPECT_EQ(second.results().size(), group.samples.size());
  return second.results();
}

} // namespace troupe::actors::test
