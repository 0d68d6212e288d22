/// @file
/// A task the policy talks to: it gives messages, takes the model's reply, and gives a reward.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/chat.h"
#include "rl/options.h"

namespace troupe::rl {

using data::Message;
using data::Split;

/// Names one problem of a task, for ever: (task seed, split, index). The only source of an episode's randomness.
struct ProblemId {
  std::uint64_t seed = 0;
  Split split = Split::kTrain;
  std::uint64_t index = 0;
};
/// "train problem 12".
[[nodiscard]] std::string to_string(const ProblemId& id);

/// How an episode begins.
struct Opening {
  std::vector<Message> messages; ///< At least one, the last one not the assistant's.
  std::string tools = {};        ///< What the policy may call: a JSON list of function definitions; empty: nothing.
};

/// What the environment answers to one reply of the policy.
struct Step {
  std::vector<Message> messages; ///< Appended to the conversation; empty when `done`.
  double reward = 0;             ///< For this reply alone; finite and within the task's bounds.
  bool done = false;
  bool answered = true;          ///< Whether the reply held an answer that could be graded.
};

/// One episode, used from one thread.
///
/// Contract, checked by tests/rl/environment_contract_test.cpp for every row of registry.cpp: `reset` comes first and once; the same
/// problem and the same replies give the same steps; `step` before `reset` or after `done` is refused (kInvalidArgument); a call
/// returns within the task's deadline (kTimeout).
class Environment {
 public:
  virtual ~Environment() = default;

  /// Starts the episode. Errors: kNotFound for an index beyond the split; otherwise as step.
  [[nodiscard]] virtual Result<Opening> reset(const ProblemId& problem) = 0;

  /// Scores one reply and moves on. `reply.content` is what was said, without control tokens; `reply.more` is what the model's own grammar makes of it, where it has
  /// one: answer (what is neither reasoning nor a call), reasoning_content, tool_calls.
  /// Errors: kTimeout, kUnavailable: a program or sandbox failed; the sample is re-issued and counted, never scored as zero.
  /// kCorrupt: the task itself is wrong (a reward that is not finite or out of bounds); the message names the problem.
  [[nodiscard]] virtual Result<Step> step(const Message& reply) = 0;
};

/// A loaded task: makes episodes. Used from one thread, which must not end before it (the kernel kills a task program together with the
/// thread that started it); outlives its episodes.
class Task {
 public:
  virtual ~Task() = default;
  [[nodiscard]] virtual std::unique_ptr<Environment> new_episode() = 0;
  /// Number of problems of a split; nothing when they are made on demand. Train indices go round and round (a new order every time),
  /// eval indices end.
  [[nodiscard]] virtual std::optional<std::uint64_t> size(Split split) const = 0;
};

struct TaskRow {
  std::string_view type;
  std::string_view help;
  Result<std::unique_ptr<Task>> (*create)(const TaskOptions&);
};
/// Every task that `type =` may name.
[[nodiscard]] std::span<const TaskRow> tasks();

/// Loads a task. Blocking: reads files, starts the program of a program task.
/// Errors: kInvalidConfig for an unknown type or bad options; kNotFound and kCorrupt ("file:line") for its data; kUnavailable for a
/// program that does not start.
[[nodiscard]] Result<std::unique_ptr<Task>> make_task(const TaskOptions& options);

} // namespace troupe::rl
