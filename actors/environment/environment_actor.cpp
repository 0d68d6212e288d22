#include "actors/environment/environment_actor.h"

#include <caf/all.hpp>

#include <algorithm>
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

struct Episode { // between two turns
  std::unique_ptr<rl::Environment> environment;
  std::size_t turns = 0;
  std::uint64_t used = 0;
};

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
    for (const EnvironmentCall& call : calls.calls) {
      replies.replies.push_back(serve_one(calls, call));
      context_.progress->move();
    }
    return replies;
  }

  EnvironmentReply serve_one(const EnvironmentCalls& calls, const EnvironmentCall& call) {
    EnvironmentReply reply;
    reply.call = call.call;
    const Status done = call.replies.empty() ? begin(call, reply) : go_on({calls.worker, calls.incarnation, call.episode}, call, reply);
    reply.ok = done.has_value();
    if (!done) reply.error = done.error();
    return reply;
  }

  Result<std::unique_ptr<rl::Environment>> open(const EnvironmentCall& call, EnvironmentReply& reply) {
    auto episode = task_->new_episode();
    const rl::ProblemId problem{options_.task.seed, call.eval ? rl::Split::kEval : rl::Split::kTrain, call.problem};
    TROUPE_TRY(auto opening, episode->reset(problem));
    reply.messages = std::move(opening.messages);
    reply.tools = std::move(opening.tools);
    return episode;
  }

  Status begin(const EnvironmentCall& call, EnvironmentReply& reply) {
    TROUPE_TRY(const auto episode, open(call, reply));
    return {};
  }

  // The last reply, after those before it where this runner has not heard them.
  Status go_on(const EpisodeKey& key, const EnvironmentCall& call, EnvironmentReply& reply) {
    Episode episode;
    if (const auto held = episodes_.find(key); held != episodes_.end()) {
      episode = std::move(held->second);
      episodes_.erase(held);
    }
    if (!episode.environment || episode.turns + 1 != call.replies.size()) {
      TROUPE_TRY(episode.environment, open(call, reply));
      episode.turns = 0;
    }
    for (; episode.turns < call.replies.size(); ++episode.turns) {
      if (reply.done) return fail(ErrorCode::kCorrupt, "the task ended an episode sooner than it did before, after the same replies");
      TROUPE_TRY(auto step, episode.environment->step(call.replies[episode.turns]));
      reply.reward = step.reward;
      reply.done = step.done;
      reply.answered = step.answered;
      reply.messages = std::move(step.messages);
    }
    if (!reply.done) keep(key, std::move(episode));
    return {};
  }

  // The episode unused for longest makes room: if it is still wanted, it is played again.
  void keep(const EpisodeKey& key, Episode episode) {
    if (episodes_.size() >= options_.episodes_max)
      episodes_.erase(std::min_element(episodes_.begin(), episodes_.end(), [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    episode.used = ++uses_;
    episodes_[key] = std::move(episode);
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
  std::map<EpisodeKey, Episode> episodes_;
  std::uint64_t uses_ = 0;
  std::map<std::string, std::uint32_t> incarnations_;
  WorkThread thread_{1024, {}, context_.progress}; // last: joined before what it uses is gone
};

} // namespace

Status run_environment(const WorkerFrame& frame, const EnvironmentRunnerOptions& options) {
  return run_worker(frame, [&](const WorkerContext& context) -> Result<std::unique_ptr<WorkerLogic>> {
    TROUPE_TRY(auto task, rl::make_task(options.task));
    return std::make_unique<EnvironmentLogic>(context, std::move(task), options);
  });
}

} // namespace troupe::actors
