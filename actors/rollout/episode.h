/// @file
/// A sample on its way through the turns of its episode: token by token as sampled, never decoded and encoded again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "actors/messages/rollout.h"
#include "actors/policy/policy.h"
#include "generate/request.h"

namespace troupe::actors {

/// Adds the turn that `said` was and opens the next one with what the task answered. `now`: the weights that will first read the task's
/// tokens. `reward` is that of the turn.
void next_turn(SampleTurns& turns, std::span<const std::int32_t> prompt, const generate::Completion& said, std::span<const data::Message> answer,
               double reward, const Policy& policy, PolicyVersion now);

/// What the engine is to sample now: the open turn of `prompt` and `prefix.turns`, going on from the prefix's tokens.
/// Randomness is counted in sampled tokens over all turns.
[[nodiscard]] generate::Request request_of(std::span<const std::int32_t> prompt, const SamplePrefix& prefix);

/// The whole sample when `said` is its last turn. `id`, `attempt`, `reward` of the last turn and `text` are the caller's.
[[nodiscard]] SampleResult result_of(const SampleTurns& turns, const generate::Completion& said);

/// What another worker needs to go on after `turns` and the interrupted turn `said`.
[[nodiscard]] SamplePrefix prefix_of(SampleTurns turns, const generate::Completion& said);

} // namespace troupe::actors
