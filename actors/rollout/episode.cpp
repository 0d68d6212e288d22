#include "actors/rollout/episode.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/conversation.h"

namespace troupe::actors {
namespace {

PolicyVersion oldest_of(const SampleTurns& turns, const generate::Completion& said) {
  PolicyVersion oldest = said.kv_oldest;
  for (const PolicyVersion version : said.versions) oldest = std::min(oldest, version);
  return turns.ids.empty() ? oldest : std::min(oldest, turns.oldest);
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// The ids of the context that is being sampled in: the prompt and what follows it, or what was begun anew.
std::vector<std::int32_t> context_of(std::span<const std::int32_t> prompt, const SampleTurns& turns) {
  if (!turns.starts.empty()) return {turns.ids.begin() + static_cast<std::ptrdiff_t>(turns.starts.back()), turns.ids.end()};
  std::vector<std::int32_t> ids(prompt.begin(), prompt.end());
  append(ids, turns.ids);
  return ids;
}

Result<data::Conversation> conversation_of(const SampleTurns& turns, const EpisodePrompt& prompt, const Policy& policy) {
  data::ChatExtras extras;
  extras.now = data::kTrainingDate;
  extras.tools = prompt.tools;
  data::Conversation conversation(policy.format, policy.tokenizer, extras);
  std::vector<data::Message> messages = prompt.messages;
  TROUPE_TRY(const auto later, data::messages_from_text(turns.messages));
  append(messages, later);
  data::Rendered rendered;
  rendered.ids = context_of(prompt.ids, turns);
  rendered.sampled.resize(rendered.ids.size());
  TROUPE_TRY_STATUS(conversation.resume(std::move(messages), std::move(rendered)));
  return conversation;
}

data::Message message_of(const data::Conversation& conversation, const generate::Completion& said, const Policy& policy) {
  data::Message message{"assistant", said.text, {}};
  if (!policy.format.is_template()) return message;
  const data::Message parsed = conversation.message_of(said.ids);
  if (parsed.more.empty()) return message;
  auto more = nlohmann::ordered_json::parse(parsed.more, nullptr, false);
  more["answer"] = parsed.content;
  message.more = more.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return message;
}

} // namespace

Status next_turn(SampleTurns& turns, const EpisodePrompt& prompt, const generate::Completion& said, std::span<const data::Message> answer,
                 double reward, const Policy& policy, PolicyVersion now, bool error_turn) {
  TROUPE_TRY(auto conversation, conversation_of(turns, prompt, policy));
  const std::size_t before = conversation.rendered().ids.size();
  std::optional<data::Message> heard;
  if (!error_turn) heard = message_of(conversation, said, policy);
  TROUPE_TRY(const bool exact, conversation.go_on(said.ids, answer));
  const auto& all = conversation.messages();
  turns.messages = data::messages_to_text(std::span(all).subspan(prompt.messages.size()));
  turns.oldest = oldest_of(turns, said);
  append(turns.ids, said.ids);
  turns.sampled.resize(turns.ids.size(), 1);
  append(turns.logprobs, said.logprobs);
  append(turns.versions, said.versions);
  const auto& ids = conversation.rendered().ids;
  const std::size_t from = exact ? before + said.ids.size() : 0;
  if (!exact) turns.starts.push_back(static_cast<std::uint32_t>(turns.ids.size()));
  turns.ids.insert(turns.ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(from), ids.end());
  turns.sampled.resize(turns.ids.size(), 0);
  turns.logprobs.resize(turns.ids.size(), 0);
  turns.versions.resize(turns.ids.size(), now);
  if (heard) turns.replies.push_back(std::move(*heard));
  else ++turns.errors;
  turns.reward += reward;
  return {};
}

Heard hear(const SampleTurns& turns, const EpisodePrompt& prompt, const generate::Completion& said, const Policy& policy) {
  const Heard as_written{{"assistant", said.text, {}}, {}};
  if (!policy.format.is_template()) return as_written;
  const auto conversation = conversation_of(turns, prompt, policy);
  return conversation ? Heard{message_of(*conversation, said, policy), conversation->problems_of(said.ids)} : as_written;
}

generate::Request request_of(std::span<const std::int32_t> prompt, const SamplePrefix& prefix) {
  generate::Request request;
  request.prompt = context_of(prompt, prefix.turns);
  request.first_position = static_cast<std::uint64_t>(std::count(prefix.turns.sampled.begin(), prefix.turns.sampled.end(), 1));
  request.prefix = {prefix.ids, prefix.logprobs, prefix.versions, prefix.kv_oldest};
  return request;
}

SampleResult result_of(const SampleTurns& turns, const generate::Completion& said) {
  SampleResult result;
  result.ids = turns.ids;
  append(result.ids, said.ids);
  if (!turns.ids.empty()) {
    result.sampled = turns.sampled;
    result.sampled.resize(result.ids.size(), 1);
  }
  result.starts = turns.starts;
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
