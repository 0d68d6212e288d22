/// @file
/// The makers of the tasks in registry.cpp. Use `make_task`, which adds the checks every task is held to.
#pragma once

#include <memory>

#include "rl/environment.h"
#include "rl/reward.h"

namespace troupe::rl {

/// Problems made by rule (data/arithmetic.h).
[[nodiscard]] Result<std::unique_ptr<Task>> make_arithmetic_task(const TaskOptions& options);
/// Rows of a JSONL file (data/dataset.h), shuffled anew each time round.
[[nodiscard]] Result<std::unique_ptr<Task>> make_jsonl_task(const TaskOptions& options);
/// A program of the user's: docs/formats/program_environment.md.
[[nodiscard]] Result<std::unique_ptr<Task>> make_program_task(const TaskOptions& options);

/// A conversation of one question, graded once. What arithmetic and jsonl make of a problem.
class GradedEpisode : public Environment {
 public:
  explicit GradedEpisode(const Reward& reward) : reward_(reward) {}
  [[nodiscard]] Result<Step> step(const Message& reply) override;

 protected:
  std::string answer_;

 private:
  const Reward& reward_;
};

} // namespace troupe::rl
