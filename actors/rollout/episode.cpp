#include "actors/rollout/episode.h"

#include <algorithm>

namespace troupe::actors {
namespace {

PolicyVersion oldest_of(const SampleTurns& turns, const generate::Completion& said) {
  PolicyVersion oldest = said.kv_oldest;
  for (const PolicyVersion version : said.versions) oldest = std::min(oldest, version);
  return turns.replies.empty() ? oldest : std::min(oldest, turns.oldest);
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

} // namespace

void next_turn(SampleTurns& turns, std::span<const std::int32_t> prompt, const generate::Completion& said, std::span<const data::Message> answer,
               double reward, const Policy& policy, PolicyVersion now) {
  data::Rendered conversation;
  conversation.ids.assign(prompt.begin(), prompt.end());
  append(conversation.ids, turns.ids);
  const std::size_t before = conversation.ids.size();
  conversation.sampled.resize(before);
  policy.format.continue_with(conversation, said.ids, answer, true, policy.tokenizer);
  turns.oldest = oldest_of(turns, said);
  turns.ids.insert(turns.ids.end(), conversation.ids.begin() + static_cast<std::ptrdiff_t>(before), conversation.ids.end());
  turns.sampled.insert(turns.sampled.end(), conversation.sampled.begin() + static_cast<std::ptrdiff_t>(before), conversation.sampled.end());
  append(turns.logprobs, said.logprobs);
  turns.logprobs.resize(turns.ids.size(), 0);
  append(turns.versions, said.versions);
  turns.versions.resize(turns.ids.size(), now);
  turns.replies.push_back(said.text);
  turns.reward += reward;
}

generate::Request request_of(std::span<const std::int32_t> prompt, const SamplePrefix& prefix) {
  generate::Request request;
  request.prompt.assign(prompt.begin(), prompt.end());
  append(request.prompt, prefix.turns.ids);
  request.first_position = static_cast<std::uint64_t>(std::count(prefix.turns.sampled.begin(), prefix.turns.sampled.end(), 1));
  request.prefix = {prefix.ids, prefix.logprobs, prefix.versions, prefix.kv_oldest};
  return request;
}

SampleResult result_of(const SampleTurns& turns, const generate::Completion& said) {
  SampleResult result;
  result.ids = turns.ids;
  append(result.ids, said.ids);
  if (!turns.replies.empty()) {
    result.sampled = turns.sampled;
    result.sampled.resize(result.ids.size(), 1);
  }
  result.logprobs = turns.logprobs;
  append(result.logprobs, said.logprobs);
  result.versions = turns.versions;
  append(result.versions, said.versions);
  result.oldest = oldest_of(turns, said);
  result.finish = static_cast<std::uint8_t>(said.finish);
  result.reward = turns.reward;
  return result;
}

SamplePrefix prefix_of(SampleTurns turns, const generate::Completion& said) {
  return {std::move(turns), said.ids, said.logprobs, said.versions, said.kv_oldest};
}

} // namespace troupe::actors
