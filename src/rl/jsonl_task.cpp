#include <utility>

#include "data/dataset.h"
#include "rl/tasks.h"

namespace troupe::rl {
namespace {

class JsonlTask final : public Task {
 public:
  JsonlTask(std::unique_ptr<Reward> reward, std::vector<data::TaskRow> train, std::vector<data::TaskRow> eval)
      : reward_(std::move(reward)), train_(std::move(train)), eval_(std::move(eval)) {}
  std::unique_ptr<Environment> new_episode() override;
  std::optional<std::uint64_t> size(Split split) const override { return split == Split::kTrain ? train_.size() : eval_.size(); }

  [[nodiscard]] const Reward& reward() const { return *reward_; }
  [[nodiscard]] Result<const data::TaskRow*> row(const ProblemId& id) {
    if (id.split == Split::kEval) {
      if (id.index >= eval_.size())
        return fail(ErrorCode::kNotFound, to_string(id) + " does not exist: the split has " + std::to_string(eval_.size()) + " rows");
      return &eval_[id.index];
    }
    const std::pair<std::uint64_t, std::uint64_t> wanted{id.seed, id.index / train_.size()};
    if (order_.empty() || order_of_ != wanted) {
      order_ = data::epoch_order(train_.size(), wanted.first, wanted.second, true);
      order_of_ = wanted;
    }
    return &train_[order_[id.index % train_.size()]];
  }

 private:
  std::unique_ptr<Reward> reward_;
  std::vector<data::TaskRow> train_, eval_;
  std::pair<std::uint64_t, std::uint64_t> order_of_; ///< The seed and the round that `order_` is of.
  std::vector<std::uint32_t> order_;
};

class JsonlEpisode final : public GradedEpisode {
 public:
  explicit JsonlEpisode(JsonlTask& task) : GradedEpisode(task.reward()), task_(task) {}
  Result<Opening> reset(const ProblemId& id) override {
    TROUPE_TRY(const data::TaskRow* row, task_.row(id));
    answer_ = row->answer;
    return Opening{row->messages};
  }

 private:
  JsonlTask& task_;
};

std::unique_ptr<Environment> JsonlTask::new_episode() { return std::make_unique<JsonlEpisode>(*this); }

/// A reference answer that the grader cannot use is found at the start, with its line, not in the middle of a run.
Status check_answers(const Reward& reward, const std::vector<data::TaskRow>& rows, const std::string& path) {
  for (const data::TaskRow& row : rows)
    if (const auto score = reward.score("", row.answer); !score)
      return fail(ErrorCode::kCorrupt, score.error().message, path + ":" + std::to_string(row.line));
  return {};
}

} // namespace

Result<std::unique_ptr<Task>> make_jsonl_task(const TaskOptions& options) {
  TROUPE_TRY(auto reward, make_reward(options.reward));
  TROUPE_TRY(auto train, data::read_tasks(options.jsonl, Split::kTrain));
  std::vector<data::TaskRow> eval;
  if (options.jsonl.eval_fraction > 0) {
    TROUPE_TRY(eval, data::read_tasks(options.jsonl, Split::kEval));
  }
  TROUPE_TRY_STATUS(check_answers(*reward, train, options.jsonl.path));
  TROUPE_TRY_STATUS(check_answers(*reward, eval, options.jsonl.path));
  return std::make_unique<JsonlTask>(std::move(reward), std::move(train), std::move(eval));
}

} // namespace troupe::rl
