#include "actors/environment/environment_actor.h"

#include <caf/all.hpp>

#include <map>
#include <tuple>
#include <utility>

#include "actors/messages/all.h"
#include "actors/runtime/work_thread.h"
#include "rl/environment.h"

namespace troupe::actors {
namespace {

// (worker, incarnation, episode): episodes of a worker that died are recognised by its next incarnation.
using EpisodeKey = std::tuple<std::string, std::uint32_t, std::uint64_t>;

class EnvironmentLogic final : public WorkerLogic {
 public:
  EnvironmentLogic(WorkerContext context, std::unique_ptr<rl::Task> task, EnvironmentRunnerOptions options)
      : context_(context), options_(std::move(options)), task_(std::move(task)) {}

  caf::message_handler handlers() override {
    return {[this](const EnvironmentCalls& calls) {
      // A program task may take its whole deadline: never on CAF's threads.
      const caf::actor head = context_.head;
      if (!thread_.post([this, calls, head] { caf::anon_send(head, serve(calls)); }))
        caf::anon_send(head, refuse(calls, {ErrorCode::kResourceExhausted, "the environment runner has too many calls waiting", ""}));
    }};
  }

 private:
  EnvironmentReplies serve(const EnvironmentCalls& calls) {
    forget_older(calls.worker, calls.incarnation);
    EnvironmentReplies replies{calls.worker, calls.incarnation, {}};
    replies.replies.reserve(calls.calls.size());
    for (const EnvironmentCall& call : calls.calls) replies.replies.push_back(serve_one(calls, call));
    return replies;
  }

  EnvironmentReply serve_one(const EnvironmentCalls& calls, const EnvironmentCall& call) {
    EnvironmentReply reply;
    reply.call = call.call;
    const EpisodeKey key{calls.worker, calls.incarnation, call.episode};
    const Status done = [&]() -> Status {
      if (call.reset) TROUPE_TRY_STATUS(reset(key, call, reply));
      if (call.step) TROUPE_TRY_STATUS(step(key, call, reply));
      return {};
    }();
    reply.ok = done.has_value();
    if (!done) {
      reply.error = done.error();
      episodes_.erase(key);
    }
    return reply;
  }

  Status reset(const EpisodeKey& key, const EnvironmentCall& call, EnvironmentReply& reply) {
    if (episodes_.size() >= options_.episodes_max)
      return fail(ErrorCode::kResourceExhausted, "the environment runner has " + std::to_string(episodes_.size()) + " open episodes");
    auto episode = task_->new_episode();
    const rl::ProblemId problem{options_.task.seed, call.eval ? rl::Split::kEval : rl::Split::kTrain, call.problem};
    TROUPE_TRY(auto messages, episode->reset(problem));
    for (auto& message : messages) reply.messages.push_back({std::move(message.role), std::move(message.content)});
    episodes_[key] = std::move(episode);
    return {};
  }

  Status step(const EpisodeKey& key, const EnvironmentCall& call, EnvironmentReply& reply) {
    const auto it = episodes_.find(key);
    if (it == episodes_.end()) return fail(ErrorCode::kUnavailable, "the environment runner does not know this episode: it was restarted");
    TROUPE_TRY(auto step, it->second->step({"assistant", call.reply}));
    reply.messages.clear();
    for (auto& message : step.messages) reply.messages.push_back({std::move(message.role), std::move(message.content)});
    reply.reward = step.reward;
    reply.done = step.done;
    reply.answered = step.answered;
    if (step.done) episodes_.erase(it);
    return {};
  }

  void forget_older(const std::string& worker, std::uint32_t incarnation) {
    auto& seen = incarnations_[worker];
    if (incarnation <= seen) return;
    seen = incarnation;
    std::erase_if(episodes_, [&](const auto& entry) { return std::get<0>(entry.first) == worker && std::get<1>(entry.first) < incarnation; });
  }

  static EnvironmentReplies refuse(const EnvironmentCalls& calls, const Error& error) {
    EnvironmentReplies replies{calls.worker, calls.incarnation, {}};
    for (const EnvironmentCall& call : calls.calls) {
      replies.replies.emplace_back();
      replies.replies.back().call = call.call;
      replies.replies.back().error = error;
    }
    return replies;
  }

  WorkerContext context_;
  EnvironmentRunnerOptions options_;
  std::unique_ptr<rl::Task> task_;
  std::map<EpisodeKey, std::unique_ptr<rl::Environment>> episodes_;
  std::map<std::string, std::uint32_t> incarnations_;
  WorkThread thread_{1024, {}}; // last: joined before what it uses is gone
};

} // namespace

Status run_environment(const WorkerFrame& frame, const EnvironmentRunnerOptions& options) {
  return run_worker(frame, [&](const WorkerContext& context) -> Result<std::unique_ptr<WorkerLogic>> {
    TROUPE_TRY(auto task, rl::make_task(options.task));
    return std::make_unique<EnvironmentLogic>(context, std::move(task), options);
  });
}

} // namespace troupe::actors
