#include "data/arithmetic.h"

#include "rl/tasks.h"

namespace troupe::rl {
namespace {

class ArithmeticEpisode final : public GradedEpisode {
 public:
  ArithmeticEpisode(const Reward& reward, const data::ArithmeticOptions& options) : GradedEpisode(reward), options_(options) {}
  Result<Opening> reset(const ProblemId& id) override {
    data::Problem problem = data::make_problem(options_, id.seed, id.index, id.split);
    answer_ = std::move(problem.answer);
    return Opening{{{"user", std::move(problem.question)}}};
  }

 private:
  const data::ArithmeticOptions& options_;
};

class ArithmeticTask final : public Task {
 public:
  ArithmeticTask(std::unique_ptr<Reward> reward, const data::ArithmeticOptions& options) : reward_(std::move(reward)), options_(options) {}
  std::unique_ptr<Environment> new_episode() override { return std::make_unique<ArithmeticEpisode>(*reward_, options_); }
  std::optional<std::uint64_t> size(Split) const override { return std::nullopt; }

 private:
  std::unique_ptr<Reward> reward_;
  data::ArithmeticOptions options_;
};

} // namespace

Result<std::unique_ptr<Task>> make_arithmetic_task(const TaskOptions& options) {
  TROUPE_TRY_STATUS(data::check_options(options.arithmetic));
  TROUPE_TRY(auto reward, make_reward(options.reward));
  return std::make_unique<ArithmeticTask>(std::move(reward), options.arithmetic);
}

} // namespace troupe::rl
