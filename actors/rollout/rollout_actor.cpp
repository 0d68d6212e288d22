#include "actors/rollout/rollout_actor.h"

#include <caf/all.hpp>

#include <chrono>

#include <ATen/Parallel.h>

#include "actors/messages/all.h"
#include "actors/rollout/rollout_work.h"
#include "actors/rollout/weight_puller.h"
#include "actors/runtime/work_thread.h"
#include "base/log.h"
#include "protocol/weight_publication.h"

namespace troupe::actors {
namespace {

using Clock = std::chrono::steady_clock;

class RolloutLogic final : public WorkerLogic {
 public:
  RolloutLogic(WorkerContext context, const RolloutWorkerOptions& options, Policy policy, std::unique_ptr<WeightPuller> puller)
      : context_(context),
        options_(options),
        work_(options, std::move(policy), context.frame->name, context.frame->incarnation, output()),
        puller_(std::move(puller)) {
    post([threads = options.threads] { at::set_num_threads(threads); });
  }

  void orphaned() override {
    post([this] { work_.pause(); });
  }

  void adopted(std::function<void(std::optional<PolicyVersion>)> hello) override {
    post([this, hello = std::move(hello)] {
      work_.reset();
      hello(held_.version());
    });
  }

  void joined() override { caf::delayed_anon_send(caf::actor{context_.self}, options_.gauges_every, Tick{0}); }

  caf::message_handler handlers() override {
    return {
        [this](GroupWork& work) { post([this, work = std::move(work)]() mutable { work_.take(std::move(work)); }); },
        [this](EnvironmentReplies& replies) { post([this, replies = std::move(replies)]() mutable { work_.answer(std::move(replies)); }); },
        [this](const CancelWork& order) { post([this, order] { work_.cancel(order); }); },
        [this](const DrainRollout& order) { post([this, order] { work_.drain(std::chrono::milliseconds(order.deadline_ms)); }); },
        [this](const PullWeights& order) { pull(order.ticket); },
        [this](const ScoreProbe& order) { post([this, order] { score(order); }); },
        [this](const Tick&) {
          post([this] {
            work_.check_deadlines();
            caf::anon_send(context_.head, work_.gauges());
          });
          caf::delayed_anon_send(caf::actor{context_.self}, options_.gauges_every, Tick{0});
        },
    };
  }

 private:
  RolloutOutput output() {
    const caf::actor head = context_.head;
    return {
        [head](EnvironmentCalls m) { caf::anon_send(head, std::move(m)); }, [head](SamplesDone m) { caf::anon_send(head, std::move(m)); },
        [head](SamplesFailed m) { caf::anon_send(head, std::move(m)); },    [head](WorkRefused m) { caf::anon_send(head, std::move(m)); },
        [head](Drained m) { caf::anon_send(head, std::move(m)); },
    };
  }

  void post(WorkThread::Command command) {
    if (!thread_.post(std::move(command))) context_.fail({ErrorCode::kResourceExhausted, "the rollout worker has too many orders waiting", ""});
  }

  void pull(const WeightTicket& ticket) {
    const auto start = Clock::now();
    puller_->pull(ticket, [this, start](const WeightTicket& pulled, Result<std::shared_ptr<const comm::HugeBuffer>> bytes) {
      // Between two decode steps: the queue of the work thread is read there.
      post([this, start, pulled, bytes = std::move(bytes)] { install(pulled, bytes, start); });
    });
  }

  void install(const WeightTicket& ticket, const Result<std::shared_ptr<const comm::HugeBuffer>>& bytes, Clock::time_point start) {
    WeightsPulled answer{context_.frame->name, context_.frame->incarnation, ticket.version, ticket.lease, false, {}, ticket.region.bytes, 0};
    const Status done = [&]() -> Status {
      if (!bytes) return tl::unexpected(bytes.error());
      TROUPE_TRY_STATUS(held_.offer(ticket.version, std::nullopt));
      TROUPE_TRY_STATUS(install_weights(work_.model(), ticket, (*bytes)->bytes()));
      TROUPE_TRY_STATUS(held_.accept(ticket.version, std::nullopt, 0, 0)); // every tensor's checksum was compared by the puller
      work_.weights_changed(ticket.version);
      return {};
    }();
    // Asked for a version it has already: the earlier answer was lost.
    answer.ok = done.has_value() || done.error().code == ErrorCode::kAlreadyExists;
    if (!done) answer.error = done.error();
    if (held_.version()) answer.version = *held_.version();
    answer.seconds = seconds(Clock::now() - start);
    caf::anon_send(context_.head, answer);
  }

  void score(const ScoreProbe& order) {
    if (!held_.version() || *held_.version() != order.version) return; // other weights: nothing to compare
    auto scored = work_.score(order);
    if (!scored) return log_warning("probe: " + scored.error().to_string());
    caf::anon_send(context_.head, std::move(*scored));
  }

  WorkerContext context_;
  const RolloutWorkerOptions& options_;
  RolloutWork work_;               // work thread only
  protocol::HeldWeights held_;     // work thread only
  WorkThread thread_{4096, [this] { return work_.advance(); }, context_.progress};
  std::unique_ptr<WeightPuller> puller_; // last: its thread posts to the one before
};

} // namespace

Status run_rollout(const WorkerFrame& frame, const RolloutWorkerOptions& options) {
  return run_worker(frame, [&](const WorkerContext& context) -> Result<std::unique_ptr<WorkerLogic>> {
    TROUPE_TRY(auto policy, load_policy(options.policy, false));
    TROUPE_TRY(auto puller, WeightPuller::start(weight_transfer(frame)));
    return std::make_unique<RolloutLogic>(context, options, std::move(policy), std::move(puller));
  });
}

} // namespace troupe::actors
