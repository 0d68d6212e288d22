#include "actors/rank/rank_actor.h"

#include <caf/all.hpp>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>

#include <ATen/Parallel.h>

#include "actors/messages/all.h"
#include "actors/rank/rank_mesh.h"
#include "actors/rank/stage_work.h"
#include "actors/rank/weight_store.h"
#include "actors/runtime/names.h"
#include "actors/runtime/system.h"
#include "actors/runtime/work_thread.h"
#include "base/hash.h"
#include "base/log.h"

namespace troupe::actors {
namespace {

using Clock = std::chrono::steady_clock;
namespace pub = protocol::publication;

// The control actor. Every order that touches the model goes to the work thread, in the order of arrival; the weight store answers at once.
class RankLogic final : public WorkerLogic {
 public:
  RankLogic(WorkerContext context, const RankOptions& options, std::unique_ptr<StageWork> work)
      : context_(context), options_(options), work_(std::move(work)), self_(context.self),
        mesh_({context.head, index(), context.frame->incarnation}, from_seconds(seconds(options.comm_deadline) * time_scale())) {
    work_->on_move([progress = context_.progress] { progress->move(); });
  }
  ~RankLogic() override { mesh_.end_before(UINT64_MAX, "this rank ends"); } // the work thread may wait for other ranks

  Status open_store() {
    post([threads = options_.threads] { at::set_num_threads(threads); });
    if (index() != 0) return {}; // rank/0 publishes and saves for all
    WeightStore::Host host{self_, context_.head, &thread_, &work_->model(), [w = work_.get()] { return w->version(); }};
    TROUPE_TRY(store_, WeightStore::create(kWeightsDescriptor, std::move(host), context_.frame->epoch, options_.publication,
                                          weight_transfer(*context_.frame)));
    TROUPE_TRY(engine_, comm::TransferEngine::start({}));
    return {};
  }

  // What is queued is done first; so the version is the one that the next order finds.
  void adopted(std::function<void(std::optional<PolicyVersion>)> hello) override {
    groups_.clear();
    post([this, hello = std::move(hello)] { hello(work_->intact() ? std::optional(work_->version()) : std::nullopt); });
  }

  caf::message_handler handlers() override {
    caf::message_handler training = training_handlers();
    return index() == 0 ? training.or_else(handlers_of_the_first()) : training;
  }

 private:
  [[nodiscard]] std::uint32_t index() const { return static_cast<std::uint32_t>(context_.frame->index); }

  caf::message_handler training_handlers() {
    return {
        [this](const BuildMesh& order) { build(order); },
        [this](const AbortMesh& order) {
          log_warning("mesh " + std::to_string(order.mesh & 0xffffffff) + " is over: " + order.reason);
          mesh_.end_before(order.mesh + 1, order.reason);
        },
        [this](const StoreAnswer& answer) { mesh_.answered(answer); },
        [this](const StartStage& order) {
          post([this, order] {
            if (const auto done = work_->start_stage(order.stage, order.steps_done); !done) context_.fail(done.error());
          });
        },
        [this](const SetLearningRate& order) { post([this, order] { work_->set_lr(order.stage, order.lr); }); },
        [this](const BatchGroup& group) { groups_.push_back(group); },
        [this](const TrainStep& order) { train(order); },
        [this](const SnapshotState& order) { post([this, order] { take_snapshot(order); }); },
    };
  }

  // What one rank does for all of them.
  caf::message_handler handlers_of_the_first() {
    caf::message_handler orders{
        [this](const ExportModel& order) { post([this, order] { export_model(order); }); },
        [this](const ScoreProbe& order) { post([this, order] { score(order); }); },
        [this](const CopyState& order) { post([this, order] { copy_state(order); }); },
    };
    caf::message_handler weights{
        [this](const PublishWeights& order) { store_->handle(pub::Publish{order.version}); },
        [this](const SlotFilled& message) { store_->filled(message); },
        [this](const Tick&) { store_->handle(protocol::Wake{}); },
        [this](const LeaseWeights& order) {
          if (const auto id = worker_id(order.reader, order.incarnation)) store_->handle(pub::Lease{*id, order.request, order.wanted});
        },
        [this](const LeaseEnded& order) {
          const auto id = worker_id(order.reader, order.incarnation);
          if (!id) return;
          if (order.all) store_->handle(pub::ReaderGone{*id});
          else store_->handle(pub::LeaseEnded{*id, order.request});
        },
    };
    return orders.or_else(weights);
  }

  void post(WorkThread::Command command) {
    if (!thread_.post(std::move(command))) context_.fail({ErrorCode::kResourceExhausted, "the rank has too many orders waiting", ""});
  }

  void build(const BuildMesh& order) {
    groups_.clear();
    queued_step_ = 0;
    mesh_.end_before(order.mesh, "the ranks build a new mesh");
    if (!order.held && store_) store_->handle(pub::NewEpoch{order.version.epoch});
    post([this, order] {
      if (order.held && work_->version() != order.version)
        return context_.fail({ErrorCode::kFenced, "the head takes this rank to hold " + to_string(order.version) + ", but it holds " + to_string(work_->version()), ""});
      work_->join(nullptr);
      if (const auto built = order.held ? Status{} : work_->build(order.version, order.checkpoint); !built) return context_.fail(built.error());
      if (const auto connected = mesh_.connect(order); !connected) return mesh_broken(connected.error());
      work_->join(mesh_.group());
      if (const auto equal = work_->expect_equal_ranks(); !equal) return failed(equal.error(), true);
      caf::anon_send(context_.head, MeshReady{order.version, order.mesh, index(), static_cast<std::uint64_t>(work_->model().spec().parameter_count())});
    });
  }

  // On the work thread. What the others have done is the head's to judge, and this rank waits for the next mesh. What it has done itself ends
  // it; an error that every rank sees (`alike`) ends the first of them only.
  void failed(const Error& error, bool alike) {
    if (mesh_.group() != nullptr && mesh_.group()->broken()) return mesh_broken(error);
    if (!alike || index() == 0) return context_.fail(error);
    log_error(error.to_string() + " (on every rank: rank/0 reports it)");
  }

  void mesh_broken(const Error& error) {
    log_error(error.to_string());
    caf::anon_send(context_.head, MeshBroken{mesh_.number(), index(), error});
  }

  void train(const TrainStep& order) {
    std::vector<BatchGroup> groups;
    for (BatchGroup& group : groups_)
      if (group.from == order.from) groups.push_back(std::move(group));
    groups_.clear();
    if (queued_step_.exchange(order.from.step + 1) == order.from.step + 1) return; // it is at it: the order was sent again
    post([this, order, groups = std::move(groups)]() mutable {
      step(order, std::move(groups));
      queued_step_ = 0;
    });
  }

  void step(const TrainStep& order, std::vector<BatchGroup> groups) {
    const PolicyVersion now = work_->version();
    if (order.from.epoch != now.epoch || order.from > now) return;                // of another incarnation of the state
    if (order.from < now) return answer_for_all();                                // asked again: the answer was lost
    if (groups.size() != order.groups) {
      log_warning("step from " + to_string(order.from) + " came with " + std::to_string(groups.size()) + " of " + std::to_string(order.groups) +
                  " groups; waiting for it to be sent again");
      return;
    }
    auto done = work_->step(std::move(groups));
    if (!done) return failed(done.error(), work_->failed_alike());
    last_step_ = std::move(*done);
    answer_for_all();
  }

  void answer_for_all() {
    if (index() == 0) caf::anon_send(context_.head, last_step_);
  }

  void export_model(const ExportModel& order) {
    Exported answer{order.stage, false, {}, order.folder, 0};
    const auto bytes = work_->export_model(order.stage, order.folder);
    answer.ok = bytes.has_value();
    if (bytes) answer.bytes = *bytes;
    else answer.error = bytes.error();
    caf::anon_send(context_.head, answer);
  }

  void score(const ScoreProbe& order) {
    if (work_->version() != order.version) return; // the weights have gone on: nothing to compare
    const auto scores = work_->score(order.stage, order.sequences);
    if (!scores) return log_warning("probe: " + scores.error().to_string());
    caf::anon_send(context_.head, ProbeScored{context_.frame->name, order.id, order.version, *scores, {}});
  }

  void take_snapshot(const SnapshotState& order) {
    if (work_->version() != order.version) return log_warning("a snapshot of " + to_string(order.version) + " was asked for too late");
    const auto start = Clock::now();
    if (const auto equal = work_->expect_equal_ranks(); !equal) return failed(equal.error(), true);
    if (index() != 0) return;
    auto snapshot = work_->snapshot();
    if (!snapshot) return context_.fail(snapshot.error());
    snapshot_ = std::make_shared<const Snapshot>(std::move(*snapshot));
    stall_ = seconds(Clock::now() - start);
    caf::anon_send(context_.head, StateLayoutIs{checkpoint::to_json(snapshot_->layout).dump(), snapshot_->layout.bytes});
  }

  // The copy over UCX runs beside the next steps.
  void copy_state(const CopyState& order) {
    StateCopied answer;
    answer.save = order.save;
    answer.version = order.version;
    answer.stall_seconds = stall_;
    if (!snapshot_ || snapshot_->version != order.version) {
      answer.error = {ErrorCode::kUnavailable, "the rank has no copy of " + to_string(order.version), ""};
      return caf::anon_send(context_.head, answer);
    }
    const bool queued = copier_.post([this, order, answer, snapshot = snapshot_]() mutable {
      const auto sent = engine_->put_blocking(order.region, 0, snapshot->region.data(), snapshot->region.size(), options_.transfer_deadline);
      answer.ok = sent.has_value();
      if (sent) {
        answer.record = snapshot->record;
        answer.checksum = hash64(snapshot->region);
      } else {
        answer.error = sent.error();
      }
      caf::anon_send(context_.head, answer);
    });
    if (queued) return;
    answer.error = {ErrorCode::kResourceExhausted, "another copy of the state is still on its way", ""};
    caf::anon_send(context_.head, answer);
  }

  WorkerContext context_;
  const RankOptions& options_;
  std::unique_ptr<StageWork> work_;
  caf::actor self_;
  RankMesh mesh_;
  std::vector<BatchGroup> groups_;   // of the coming step; control actor only
  std::atomic<std::uint64_t> queued_step_{0}; // step + 1 of the order that waits or runs; 0: none
  StepDone last_step_;               // work thread only, as the next two
  std::shared_ptr<const Snapshot> snapshot_;
  double stall_ = 0;
  std::unique_ptr<comm::TransferEngine> engine_;
  std::unique_ptr<WeightStore> store_;
  WorkThread copier_{2, {}};
  WorkThread thread_{64, {}, context_.progress}; // last: joined first, before anything it uses is gone
};

} // namespace

Status run_rank(const WorkerFrame& frame, const RankOptions& options) {
  return run_worker(frame, [&](const WorkerContext& context) -> Result<std::unique_ptr<WorkerLogic>> {
    TROUPE_TRY(auto work, StageWork::create(options));
    auto logic = std::make_unique<RankLogic>(context, options, std::move(work));
    TROUPE_TRY_STATUS(logic->open_store());
    return logic;
  });
}

} // namespace troupe::actors
