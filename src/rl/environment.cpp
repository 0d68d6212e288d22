#include "rl/environment.h"

#include <cmath>

#include "rl/tasks.h"

namespace troupe::rl {
namespace {

/// Holds every task to the contract of environment.h, in one place.
class CheckedEpisode final : public Environment {
 public:
  CheckedEpisode(std::unique_ptr<Environment> inner, const TaskOptions& options) : inner_(std::move(inner)), options_(options) {}

  Result<Opening> reset(const ProblemId& problem) override {
    if (state_ != State::kNew) return fail(ErrorCode::kInvalidArgument, "an episode is reset once, and this one was before");
    problem_ = problem;
    state_ = State::kOver; // unless it works
    TROUPE_TRY(Opening opening, inner_->reset(problem));
    std::vector<Message>& messages = opening.messages;
    if (messages.empty() || messages.back().role == "assistant")
      return fail(ErrorCode::kCorrupt, to_string(problem_) + ": the conversation must start with a message that is not the assistant's");
    if (!options_.system_prompt.empty()) messages.insert(messages.begin(), {"system", options_.system_prompt});
    state_ = State::kRunning;
    return opening;
  }

  Result<Step> step(const Message& reply) override {
    if (state_ != State::kRunning)
      return fail(ErrorCode::kInvalidArgument, state_ == State::kNew ? "step before reset" : "step after the end of the episode");
    state_ = State::kOver;
    auto step = inner_->step(reply);
    if (!step) {
      Error error = std::move(step).error();
      error.message = to_string(problem_) + ": " + error.message;
      return tl::unexpected(std::move(error));
    }
    TROUPE_TRY_STATUS(check(*step));
    if (!step->done) state_ = State::kRunning;
    return step;
  }

 private:
  enum class State { kNew, kRunning, kOver };

  [[nodiscard]] Status check(const Step& step) const {
    const auto broken = [&](const std::string& what) { return fail(ErrorCode::kCorrupt, to_string(problem_) + ": " + what); };
    if (!std::isfinite(step.reward)) return broken("the reward is " + std::to_string(step.reward));
    if (step.reward < options_.reward_min || step.reward > options_.reward_max)
      return broken("the reward " + std::to_string(step.reward) + " is outside [" + std::to_string(options_.reward_min) + ", " +
                    std::to_string(options_.reward_max) + "]; set task.reward_min and task.reward_max if it is meant");
    if (step.done && !step.messages.empty()) return broken("the episode is over, yet there are further messages");
    if (!step.done && (step.messages.empty() || step.messages.back().role == "assistant"))
      return broken("the episode goes on, so the last message must be someone's other than the assistant");
    return {};
  }

  std::unique_ptr<Environment> inner_;
  const TaskOptions& options_;
  ProblemId problem_;
  State state_ = State::kNew;
};

class CheckedTask final : public Task {
 public:
  CheckedTask(std::unique_ptr<Task> inner, const TaskOptions& options) : inner_(std::move(inner)), options_(options) {}
  std::unique_ptr<Environment> new_episode() override { return std::make_unique<CheckedEpisode>(inner_->new_episode(), options_); }
  std::optional<std::uint64_t> size(Split split) const override { return inner_->size(split); }

 private:
  std::unique_ptr<Task> inner_;
  TaskOptions options_;
};

} // namespace

std::string to_string(const ProblemId& id) {
  return std::string(id.split == Split::kTrain ? "train" : "eval") + " problem " + std::to_string(id.index);
}

Result<Step> GradedEpisode::step(const Message& reply) {
  TROUPE_TRY(const Score score, reward_.score(reply.content, answer_));
  Step step;
  step.reward = score.value;
  step.answered = score.answered;
  step.done = true;
  return step;
}

Result<std::unique_ptr<Task>> make_task(const TaskOptions& options) {
  if (options.deadline <= Duration::zero()) return fail(ErrorCode::kInvalidConfig, "task.deadline must be longer than 0s");
  if (!(options.reward_min <= options.reward_max))
    return fail(ErrorCode::kInvalidConfig, "task.reward_min = " + std::to_string(options.reward_min) + " is above task.reward_max = " +
                                               std::to_string(options.reward_max));
  std::string known;
  for (const TaskRow& row : tasks()) {
    if (row.type == options.type) {
      TROUPE_TRY(auto task, row.create(options));
      return std::make_unique<CheckedTask>(std::move(task), options);
    }
    known += (known.empty() ? "" : ", ") + std::string(row.type);
  }
  return fail(ErrorCode::kInvalidConfig, "unknown task.type \"" + options.type + "\": one of " + known);
}

} // namespace troupe::rl
