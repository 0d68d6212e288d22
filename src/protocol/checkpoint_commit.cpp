#include "protocol/checkpoint_commit.h"

#include <algorithm>
#include <utility>

namespace troupe::protocol {

using namespace checkpoint;

CheckpointCommit::CheckpointCommit(const CheckpointCommitOptions& options, std::uint32_t epoch, std::uint32_t ranks)
    : options_(options), epoch_(epoch), ranks_(ranks) {}

std::vector<Effect> CheckpointCommit::handle(const Event& event, TimePoint now) {
  effects_.clear();
  now_ = now;
  std::visit([this](const auto& e) { on(e); }, event);
  return std::exchange(effects_, {});
}

void CheckpointCommit::on(const Request& e) {
  const auto refuse = [&](ErrorCode code, std::string why) {
    effects_.emplace_back(NotSaved{e.version, Error{code, std::move(why), {}}});
  };
  if (e.version.epoch != epoch_) {
    return refuse(ErrorCode::kFenced, to_string(e.version) + " is not of epoch " + std::to_string(epoch_));
  }
  if (busy()) {
    return refuse(ErrorCode::kResourceExhausted,
                  "the checkpoint of " + to_string(version_) + " is still " + std::string(phase_name()));
  }
  ++save_;
  version_ = e.version;
  record_ = e.record;
  copied_.clear();
  if (prepared_ == save_) return copy();
  enter(Phase::kPreparing, options_.prepare_deadline);
  effects_.emplace_back(Prepare{save_});
}

void CheckpointCommit::on(const WriterJoined&) {
  if (phase_ == Phase::kIdle) return prepare_next();
  if (phase_ == Phase::kPreparing) effects_.emplace_back(Prepare{save_});
}

void CheckpointCommit::on(const WriterLost& e) {
  prepared_.reset();
  if (busy() && phase_ != Phase::kPreparing) abort(ErrorCode::kUnavailable, "the writer is lost: " + e.reason);
}

void CheckpointCommit::on(const LayoutUnknown&) {
  prepared_.reset();
  if (!busy()) prepare_next();
}

void CheckpointCommit::on(const Prepared& e) {
  if (e.save != save_ + (busy() ? 0 : 1)) return;
  prepared_ = e.save;
  if (phase_ == Phase::kPreparing) copy();
}

void CheckpointCommit::copy() {
  enter(Phase::kCopying, options_.copy_deadline);
  effects_.emplace_back(CopyState{save_, version_});
}

void CheckpointCommit::prepare_next() { effects_.emplace_back(Prepare{save_ + 1}); }

void CheckpointCommit::on(const StateCopied& e) {
  if (phase_ != Phase::kCopying || e.save != save_ || e.rank >= ranks_) return;
  if (e.version != version_) {
    return abort(ErrorCode::kFenced, "rank/" + std::to_string(e.rank) + " copied " + to_string(e.version));
  }
  copied_.insert(e.rank);
  if (copied_.size() < ranks_) return;
  enter(Phase::kWriting, options_.write_deadline);
  effects_.emplace_back(Write{save_, record_});
}

void CheckpointCommit::on(const Written& e) {
  if (phase_ != Phase::kWriting || e.save != save_) return;
  enter(Phase::kCommitting, options_.commit_deadline);
  effects_.emplace_back(Commit{save_, version_});
}

void CheckpointCommit::on(const Committed& e) {
  if (phase_ != Phase::kCommitting || e.save != save_) return;
  phase_ = Phase::kIdle;
  std::erase(committed_, version_);
  committed_.push_back(version_);
  effects_.emplace_back(Saved{version_});
  prepare_next();
  if (options_.keep == 0 || committed_.size() <= options_.keep) return;
  const auto kept = committed_.end() - static_cast<std::ptrdiff_t>(options_.keep);
  effects_.emplace_back(Remove{{committed_.begin(), kept}});
  committed_.erase(committed_.begin(), kept);
}

void CheckpointCommit::on(const Failed& e) {
  if (busy() && e.save == save_) abort(ErrorCode::kUnavailable, e.reason);
}

void CheckpointCommit::on(const NewEpoch& e) {
  if (e.epoch <= epoch_) return;
  if (busy()) abort(ErrorCode::kFenced, "epoch " + std::to_string(e.epoch) + " began");
  epoch_ = e.epoch;
  ranks_ = e.ranks;
}

void CheckpointCommit::on(const Found& e) {
  committed_ = e.versions;
  std::sort(committed_.begin(), committed_.end());
}

void CheckpointCommit::on(const Wake&) {
  if (!busy()) return;
  if (now_ >= deadline_)
    return abort(ErrorCode::kTimeout, "it was still " + std::string(phase_name()) + " at its deadline");
  effects_.emplace_back(ArmTimer{deadline_});
}

std::optional<PolicyVersion> CheckpointCommit::newest() const {
  return committed_.empty() ? std::nullopt : std::optional(committed_.back());
}

void CheckpointCommit::enter(Phase phase, Duration deadline) {
  phase_ = phase;
  deadline_ = now_ + deadline;
  effects_.emplace_back(ArmTimer{deadline_});
}

void CheckpointCommit::abort(ErrorCode code, const std::string& reason) {
  effects_.emplace_back(Abort{save_});
  effects_.emplace_back(
      NotSaved{version_, Error{code, "the checkpoint of " + to_string(version_) + " was given up: " + reason, {}}});
  phase_ = Phase::kIdle;
  prepare_next();
}

std::string_view CheckpointCommit::phase_name() const {
  switch (phase_) {
    case Phase::kIdle: return "idle";
    case Phase::kPreparing: return "waiting for the writer";
    case Phase::kCopying: return "copying the state";
    case Phase::kWriting: return "being written";
    case Phase::kCommitting: return "being committed";
  }
  return "unknown";
}

} // namespace troupe::protocol
