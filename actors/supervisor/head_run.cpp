#include <caf/all.hpp>

#include "actors/supervisor/control_log.h"
#include "actors/supervisor/head_internal.h"
#include "base/log.h"
#include "checkpoint/repository.h"

namespace troupe::actors {

namespace prun = protocol::run;
namespace pc = protocol::checkpoint;
namespace pr = protocol::rollout;
using nlohmann::json;
using protocol::Role;
using protocol::StageKind;

void Head::run_event(const prun::Event& event) {
  if (ended_) return;
  perform_all(run_.handle(event, head_now()), kRunTimer);
}

void Head::perform(const prun::BuildMesh& e) { mesh_event(protocol::mesh::Wanted{e}); }

std::string Head::commit_folder(PolicyVersion version) const {
  return (options_.folder / "checkpoints" / checkpoint::commit_name(version)).string();
}

void Head::perform(const prun::StartStage& e) {
  const HeadStage& stage = options_.stages.at(e.stage);
  stage_began_ = step_began_ = head_now();
  stage_begin_step_ = e.steps_done;
  observer_.event("stage", stage.spec.name, {{"stage", e.stage}, {"steps_done", e.steps_done}});
  send_ranks(StartStage{static_cast<std::int32_t>(e.stage), e.steps_done});
  layout_.clear(); // a stage may have other tensors (a reference policy)
  commit_event(pc::LayoutUnknown{});
  if (stage.spec.kind == StageKind::kRl) rollout_event(pr::BeginTraining{stage.plan, e.steps_done, run_.position().version});
}

void Head::perform(const prun::TrainStep& e) {
  log_.append(protocol::control::Ordered{e.from, {}});
  send_ranks(TrainStep{e.from, 0});
}

void Head::perform(const prun::StartEvaluation& e) {
  evaluation_stage_[e.evaluation] = e.stage;
  rollout_event(pr::Evaluate{e.evaluation, e.version, options_.stages.at(e.stage).evaluation_problems});
}

void Head::perform(const prun::Save& e) {
  saving_ = e;
  saved_ledger_ = rollout_.snapshot();
  send_ranks(SnapshotState{e.version}); // before any later step: the ranks' queues keep the order
  commit_event(pc::Request{e.version, to_json(e.position).dump()});
}

void Head::perform(const prun::StartExport& e) { send_rank(ExportModel{static_cast<std::int32_t>(e.stage), options_.stages.at(e.stage).export_folder}); }

void Head::perform(const prun::DrainRollouts&) { rollout_event(pr::Drain{}); }

void Head::perform(const prun::Rollback& e) {
  if (const auto logged = log_.append_or_fail(protocol::control::Epoch{e.epoch}); !logged)
    return run_event(prun::Broken{"epoch " + std::to_string(e.epoch) + " (" + e.reason + ") cannot begin: " + logged.error().to_string()});
  observer_.say("troupe: rolling back to the newest checkpoint, epoch " + std::to_string(e.epoch) + ": " + e.reason);
  observer_.event("rollback", "", {{"epoch", e.epoch}, {"reason", e.reason}});
  rolled_back_ = true;
  saving_.reset();
  batch_.reset();
  mesh_event(protocol::mesh::Dropped{e.reason});
  rollout_event(pr::TrainerLost{e.reason});
  commit_event(pc::NewEpoch{e.epoch, 1});
}

void Head::perform(const prun::Progress& e) {
  log_.append(protocol::control::Progress{e.position, rollout_.snapshot()});
  log_tally();
}

void Head::perform(const prun::Ended& e) { end(e.exit, e.reason); }

void Head::step_done(const StepDone& message) {
  if (begun_ && late_ && message.version == late_->version) return report_late_step(message);
  // An answer may come twice (the order is sent again while a step is long), or from an epoch that is over.
  if (!begun_ || message.version != PolicyVersion{run_.epoch(), run_.position().version.step + 1}) return;
  report_step(message);
  // The rollout director hears of the step first, so that the ledger of a commit includes it; its effects (the next train step) come after the
  // run director's, so that a snapshot is taken before the weights change.
  std::vector<pr::Effect> then;
  if (batch_ && message.version == PolicyVersion{batch_->from.epoch, batch_->from.step + 1}) {
    report_samples(batch_->prompts);
    batch_.reset();
    then = rollout_.handle(pr::StepDone{message.version}, head_now());
  }
  run_event(prun::StepDone{message.version});
  perform_all(then, kRolloutTimer);
}

void Head::exported(const Exported& message) {
  if (!begun_) return; // asked for by the lost head
  if (!message.ok) return run_event(prun::Broken{"the export failed: " + message.error.to_string()});
  observer_.say("troupe: exported " + format_bytes(message.bytes) + " to " + message.folder);
  run_event(prun::StageDone{});
}

// ---- checkpoints ----------------------------------------------------------------------------------------------------

void Head::commit_event(const pc::Event& event) {
  if (ended_) return;
  perform_all(commit_.handle(event, head_now()), kCommitTimer);
}

void Head::perform(const pc::Prepare& e) {
  save_ = e.save;
  preparing_ = true;
  prepare_memory();
}

// Metadata is exchanged once a stage: the layout is known from its first snapshot on, and the writer keeps the memory for it.
void Head::prepare_memory() {
  WorkerEntry* writer = only(Role::kCheckpointWriter);
  if (!preparing_ || writer == nullptr || layout_.empty()) return;
  if (prepared_layout_ == layout_) {
    preparing_ = false;
    return commit_event(pc::Prepared{save_});
  }
  caf::anon_send(writer->actor, PrepareMemory{layout_, layout_bytes_});
}

void Head::layout_is(const StateLayoutIs& message) {
  layout_ = message.layout;
  layout_bytes_ = message.bytes;
  prepare_memory();
}

void Head::memory_ready(const MemoryReady& message) {
  writer_region_ = message.region;
  prepared_layout_ = layout_;
  prepare_memory();
}

void Head::perform(const pc::CopyState& e) { send_rank(CopyState{e.save, e.version, writer_region_}); }

void Head::state_copied(const StateCopied& message) {
  if (!message.ok) return commit_event(pc::Failed{message.save, message.error.to_string()});
  copied_ = message;
  last_.metrics.push_back({"time/checkpoint_stall", message.stall_seconds});
  commit_event(pc::StateCopied{message.save, 0, message.version});
}

void Head::perform(const pc::Write& e) {
  const json rank = json::parse(copied_.record, nullptr, false);
  const json position = json::parse(e.record, nullptr, false);
  json record{{"epoch", copied_.version.epoch},
              {"step", copied_.version.step},
              {"term", start_.term},
              {"stage", position.value("stage", 0)},
              {"seed", options_.seed},
              {"run_id", frame_.run_id},
              {"config_digest", options_.config_digest},
              {"model_digest", ""},
              {"optimizer", rank.value("optimizer", json::object())},
              {"schedule", json::object()},
              {"data_cursor", rank.value("data_cursor", json::object())},
              {"extra", {{"position", position}}},
              {"blobs", json::array({"ledger"})},
              {"blob_bytes", {{"ledger", to_json(saved_ledger_).dump()}}}};
  if (WorkerEntry* writer = only(Role::kCheckpointWriter))
    caf::anon_send(writer->actor, CommitState{e.save, record.dump(), copied_.checksum, options_.checkpoints_kept});
}

void Head::committed(const Committed& message) {
  if (!message.ok) return commit_event(pc::Failed{message.save, message.error.to_string()});
  last_.metrics.push_back({"time/save_ckpt", message.seconds});
  if (saving_ && message.save == save_) commits_[saving_->version] = {message.folder, saved_ledger_};
  // The writer renames the finished folder into place in one go: written and committed are one answer.
  commit_event(pc::Written{message.save});
  commit_event(pc::Committed{message.save});
}

void Head::perform(const pc::Commit&) {}
void Head::perform(const pc::Abort& e) { log_warning("checkpoint " + std::to_string(e.save) + " is given up"); }
void Head::perform(const pc::Remove&) {} // the writer keeps the newest ones, after the new one is durable

void Head::perform(const pc::Saved& e) {
  if (!saving_ || saving_->version != e.version) return;
  const prun::Save save = *std::exchange(saving_, std::nullopt);
  observer_.event("checkpoint", "", {{"version", to_string(e.version)}});
  log_.append(protocol::control::Committed{save.position});
  run_event(prun::Saved{e.version, save.position});
}

void Head::perform(const pc::NotSaved& e) {
  if (saving_ && saving_->version == e.version) saving_.reset();
  observer_.event("checkpoint_failed", "", {{"version", to_string(e.version)}, {"error", e.error.to_string()}});
  run_event(prun::NotSaved{e.version, e.error.to_string()});
}

} // namespace troupe::actors
