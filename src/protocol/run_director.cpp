#include "protocol/run_director.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/json.h"

namespace troupe::protocol {

using namespace run;

std::string_view to_string(StageKind kind) {
  switch (kind) {
    case StageKind::kPretrain: return "pretrain";
    case StageKind::kSft: return "sft";
    case StageKind::kRl: return "rl";
    case StageKind::kEval: return "eval";
    case StageKind::kExport: return "export";
  }
  return "unknown";
}

RunDirector::RunDirector(const RunOptions& options, std::vector<StageSpec> stages)
    : options_(options), stages_(std::move(stages)) {}

std::vector<Effect> RunDirector::handle(const Event& event, TimePoint now) {
  effects_.clear();
  now_ = now;
  if (!ended_) std::visit([this](const auto& e) { on(e); }, event);
  return std::exchange(effects_, {});
}

void RunDirector::on(const Start& e) {
  TROUPE_CHECK(phase_ == Phase::kNew, "a run starts once");
  position_ = e.position;
  epoch_ = e.epoch;
  if (position_ != RunPosition{}) committed_ = position_;
  start_ = position_;
  if (position_.stage >= stages_.size()) return end(RunExit::kDone, "every stage was done already");
  build_mesh();
}

void RunDirector::on(const Adopt& e) {
  TROUPE_CHECK(phase_ == Phase::kNew, "a run starts once");
  position_ = e.position;
  epoch_ = e.position.version.epoch;
  committed_ = e.committed;
  if (position_.stage >= stages_.size()) return end(RunExit::kDone, "every stage was done already");
  enter(Phase::kMesh, options_.mesh_deadline);
  effects_.emplace_back(BuildMesh{position_.version, std::nullopt, true});
}

void RunDirector::on(const MeshReady& e) {
  if (phase_ != Phase::kMesh || e.version != position_.version) return;
  enter_stage();
}

void RunDirector::on(const StepDone& e) {
  const bool expected = e.version == PolicyVersion{epoch_, position_.version.step + 1};
  if ((phase_ != Phase::kRunning && phase_ != Phase::kDraining) || !expected) return;
  position_.version = e.version;
  ++position_.stage_step;
  stepping_ = false;
  poison_.forget("step " + std::to_string(e.version.step));
  effects_.emplace_back(Progress{position_});
  if (phase_ == Phase::kDraining) {
    if (trains_itself()) begin_final_save();
    return;  // an rl stage answers with Drained
  }
  const StageSpec& spec = stage();
  const bool last = position_.stage_step >= spec.steps;
  const auto due = [&](std::uint64_t every) { return every != 0 && position_.stage_step % every == 0 && !last; };
  if (due(spec.checkpoint_every) || (save_due_ && !last)) save();
  if (due(spec.evaluate_every)) evaluate();
  if (trains_itself()) next_train_step();
}

void RunDirector::on(const Retune& e) {
  if (e.stage >= stages_.size()) return;
  stages_[e.stage].checkpoint_every = e.checkpoint_every;
  stages_[e.stage].evaluate_every = e.evaluate_every;
}

void RunDirector::on(const StageDone&) {
  if (phase_ != Phase::kRunning || work_over_) return;
  work_done();
}

void RunDirector::on(const EvaluationDone& e) {
  if (evaluating_.erase(e.evaluation) == 0 || !evaluating_.empty()) return;
  if (phase_ == Phase::kBefore) return begin_work();
  if (phase_ == Phase::kAfter) return stage_over();
  if (phase_ != Phase::kRunning) return;
  if (stage().kind == StageKind::kEval || work_over_) return work_done();
  if (trains_itself()) next_train_step();
}

void RunDirector::on(const Saved& e) {
  if (!saving_ || *saving_ != e.position) return;
  saving_.reset();
  committed_ = e.position;
  if (e.position == position_) save_due_ = false;
  saved_or_not({});
}

void RunDirector::on(const NotSaved& e) {
  if (!saving_ || saving_->version != e.version) return;
  saving_.reset();
  save_due_ = true;
  effects_.emplace_back(Note{LogLevel::kWarning, "no checkpoint of " + to_string(e.version) + ": " + e.reason});
  saved_or_not(e.reason);
}

void RunDirector::saved_or_not(const std::string& problem) {
  if (phase_ != Phase::kStageSave && phase_ != Phase::kFinalSave) return;
  if (committed_ && *committed_ == position_) {
    if (phase_ == Phase::kStageSave) return enter_stage();
    return end(RunExit::kStopped, "stopped on request, saved at " + to_string(position_.version));
  }
  if (problem.empty()) return save();  // the save before it was still running
  if (attempts_left_-- > 1) {
    retry_save_ = now_ + kSaveRetry;
    return arm();
  }
  if (phase_ == Phase::kStageSave) return enter_stage();  // the checkpoint before it stands; the next edge tries again
  end(RunExit::kFailed, "stopped on request, but the state could not be saved: " + problem);
}

void RunDirector::on(const Drained&) {
  if (phase_ == Phase::kDraining) begin_final_save();
}

void RunDirector::on(const RankLost& e) {
  if (phase_ == Phase::kNew) return;
  roll_back(e.who, e.cause);
}

void RunDirector::on(const Broken& e) { end(RunExit::kFailed, e.reason); }

void RunDirector::on(const Stop&) {
  if (++stops_ > 1) return end(RunExit::kStopped, "stopped at once; work since the newest checkpoint is lost");
  switch (phase_) {
    case Phase::kNew:
    case Phase::kMesh: return end(RunExit::kStopped, "stopped on request before anything was to be saved");
    case Phase::kStageSave: {
      const bool waits = retry_save_.has_value();
      attempts_left_ = kSaveAttempts;
      enter(Phase::kFinalSave, options_.stop_deadline);
      return waits ? save() : void();
    }
    case Phase::kRunning:
      if (stage().kind == StageKind::kRl) {
        enter(Phase::kDraining, options_.stop_deadline);
        effects_.emplace_back(DrainRollouts{});
        return;
      }
      if (stepping_) return enter(Phase::kDraining, options_.stop_deadline);
      return begin_final_save();
    default: return begin_final_save();
  }
}

void RunDirector::on(const Wake&) {
  if (retry_save_ && now_ >= *retry_save_) {
    retry_save_.reset();
    save();
  }
  if (!deadline_ || now_ < *deadline_) return arm();
  deadline_.reset();
  switch (phase_) {
    case Phase::kMesh:
      return roll_back("the mesh", "not every rank was ready within " + format_duration(options_.mesh_deadline), false);
    case Phase::kRunning:
      return roll_back("the mesh", "a step took longer than " + format_duration(options_.step_deadline));
    case Phase::kDraining:
    case Phase::kFinalSave:
      return end(RunExit::kFailed,
                 "stopped on request, but nothing was saved within " + format_duration(options_.stop_deadline));
    default: return;
  }
}

void RunDirector::build_mesh() {
  position_.version.epoch = epoch_;
  enter(Phase::kMesh, options_.mesh_deadline);
  effects_.emplace_back(BuildMesh{position_.version, committed_ ? std::optional(committed_->version) : std::nullopt});
}

void RunDirector::enter_stage() {
  work_over_ = false;
  stepping_ = false;
  if (position_.stage >= stages_.size()) return end(RunExit::kDone, "every stage is done");
  effects_.emplace_back(Progress{position_});
  if (!stage().evaluate_before || position_.stage_step > 0) return begin_work();
  enter(Phase::kBefore, {});
  evaluate();
}

void RunDirector::begin_work() {
  enter(Phase::kRunning, {});
  effects_.emplace_back(StartStage{position_.stage, position_.stage_step});
  if (trains_itself()) return next_train_step();
  if (stage().kind == StageKind::kEval) evaluate();
  if (stage().kind == StageKind::kExport) effects_.emplace_back(StartExport{position_.stage});
}

void RunDirector::next_train_step() {
  if (!evaluating_.empty() || stepping_ || work_over_) return;
  if (position_.stage_step >= stage().steps) return work_done();
  stepping_ = true;
  effects_.emplace_back(TrainStep{position_.version});
  enter(Phase::kRunning, options_.step_deadline);
}

void RunDirector::work_done() {
  work_over_ = true;
  if (!evaluating_.empty()) return;
  if (!trains() || !stage().evaluate_after) return stage_over();
  enter(Phase::kAfter, {});
  evaluate();
}

void RunDirector::stage_over() {
  const bool trained = trains();
  ++position_.stage;
  position_.stage_step = 0;
  if (!trained) return enter_stage();
  attempts_left_ = kSaveAttempts;
  enter(Phase::kStageSave, {});
  save();
}

void RunDirector::evaluate() {
  evaluating_.insert(next_evaluation_);
  effects_.emplace_back(StartEvaluation{next_evaluation_++, position_.stage, position_.version});
}

void RunDirector::save() {
  save_due_ = saving_.has_value();
  if (saving_) return;  // its answer comes back here
  saving_ = position_;
  effects_.emplace_back(Save{position_.version, position_});
}

void RunDirector::begin_final_save() {
  attempts_left_ = kSaveAttempts;
  enter(Phase::kFinalSave, options_.stop_deadline);
  if (committed_ && *committed_ == position_)
    return end(RunExit::kStopped, "stopped on request, saved at " + to_string(position_.version));
  save();
}

void RunDirector::roll_back(const std::string& who, const std::string& cause, bool step_under_way) {
  const std::string lost = who + " is lost" + (cause.empty() ? "" : ": " + cause);
  if (stops_ > 0) return end(RunExit::kStopped, lost + " while stopping; the newest checkpoint is what remains");
  const std::string step = "step " + std::to_string(position_.version.step + 1);
  if (step_under_way && !cause.empty() && poison_.second_identical(step, who + ": " + cause)) {
    return end(RunExit::kFailed, step + " failed twice in the same way: " + lost);
  }
  while (!rollbacks_.empty() && rollbacks_.front().at + options_.rollback_window <= now_) rollbacks_.pop_front();
  rollbacks_.push_back({who, cause.empty() ? "killed" : cause, now_});
  if (rollbacks_.size() > options_.rollbacks_max) {
    std::string chain;
    for (const Failure& f : rollbacks_) chain += (chain.empty() ? "" : "; ") + f.what + ": " + f.cause;
    return end(RunExit::kFailed, "more than " + std::to_string(options_.rollbacks_max) + " rollbacks within " +
                                     format_duration(options_.rollback_window) + " (" + chain + ")");
  }
  ++epoch_;
  evaluating_.clear();
  saving_.reset();
  save_due_ = false;
  position_ = committed_.value_or(start_);
  effects_.emplace_back(Rollback{epoch_, lost});
  build_mesh();
}

void RunDirector::enter(Phase phase, std::optional<Duration> deadline) {
  phase_ = phase;
  deadline_.reset();
  retry_save_.reset();
  if (deadline) deadline_ = now_ + *deadline;
  arm();
}

void RunDirector::arm() {
  if (!deadline_ && !retry_save_) return;
  TimePoint first = deadline_.value_or(TimePoint::max());
  if (retry_save_) first = std::min(first, *retry_save_);
  effects_.emplace_back(ArmTimer{first});
}

void RunDirector::end(RunExit exit, const std::string& reason) {
  ended_ = true;
  phase_ = Phase::kEnded;
  effects_.emplace_back(Ended{exit, reason});
}

bool RunDirector::trains() const { return trains_itself() || stage().kind == StageKind::kRl; }

bool RunDirector::trains_itself() const {
  return stage().kind == StageKind::kPretrain || stage().kind == StageKind::kSft;
}

std::uint64_t RunDirector::steps_total() const {
  std::uint64_t sum = 0;
  for (const StageSpec& spec : stages_) sum += spec.steps;
  return sum;
}

nlohmann::json to_json(const RunPosition& position) {
  return {{"stage", position.stage},
          {"stage_step", position.stage_step},
          {"version", {{"epoch", position.version.epoch}, {"step", position.version.step}}}};
}

Result<RunPosition> position_from_json(const nlohmann::json& json) {
  RunPosition position;
  TROUPE_TRY(position.stage, json_field<std::uint32_t>(json, "stage"));
  TROUPE_TRY(position.stage_step, json_field<std::uint64_t>(json, "stage_step"));
  const auto version = json.find("version");
  if (version == json.end()) return fail(ErrorCode::kCorrupt, "field \"version\" is missing");
  TROUPE_TRY(position.version.epoch, json_field<std::uint32_t>(*version, "epoch"));
  TROUPE_TRY(position.version.step, json_field<std::uint64_t>(*version, "step"));
  return position;
}

} // namespace troupe::protocol
