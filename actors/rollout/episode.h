/// @file
/// A sample on its way through the turns of its episode: token by token as sampled, never decoded and encoded again.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "actors/messages/rollout.h"
#include "actors/policy/policy.h"
#include "generate/request.h"

namespace troupe::actors {

/// What the samples of a group begin with.
struct EpisodePrompt {
  std::vector<data::Message> messages;
  std::string tools; ///< What the policy may call, as JSON.
  std::vector<std::int32_t> ids;
};

/// Adds the turn that `said` was and opens the next one with what the task answered. `now`: the weights that will first read the task's
/// tokens. `reward` is that of the turn; `error_turn`: the task has not heard of it, `answer` is ours.
/// Where the format shows earlier turns otherwise than they were said, the conversation begins anew (SampleTurns::starts).
/// Errors: those of data::Conversation; then nothing has changed.
[[nodiscard]] Status next_turn(SampleTurns& turns, const EpisodePrompt& prompt, const generate::Completion& said, std::span<const data::Message> answer,
                               double reward, const Policy& policy, PolicyVersion now, bool error_turn = false);

/// A reply as the task hears it (rl::Environment::step), and what is wrong with the calls of tools in it.
struct Heard {
  data::Message message;
  std::vector<std::string> problems;
};
[[nodiscard]] Heard hear(const SampleTurns& turns, const EpisodePrompt& prompt, const generate::Completion& said, const Policy& policy);

/// What the engine is to sample now: the open turn of `prompt` and `prefix.turns`, going on from the prefix's tokens.
/// Randomness is counted in sampled tokens over all turns.
[[nodiscard]] generate::Request request_of(std::span<const std::int32_t> prompt, const SamplePrefix& prefix);

/// The whole sample when `said` is its last turn. `id`, `attempt`, `reward` of the last turn and `text` are the caller's.
[[nodiscard]] SampleResult result_of(const SampleTurns& turns, const generate::Completion& said);

/// What another worker needs to go on after `turns` and the interrupted turn `said`.
[[nodiscard]] SamplePrefix prefix_of(SampleTurns turns, const generate::Completion& said);

} // namespace troupe::actors
