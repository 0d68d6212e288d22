/// @file
/// What a rank computes: model, optimizer and data of the present stage. Lives on the work thread; knows no actors.
///
/// With R ranks each holds the whole model, sees the whole batch and computes its part of it (rl::Part). Totals are gathered and added in the
/// order of the ranks, gradients summed, and every rank makes the same update: parameters and optimizer stay equal bit for bit. The data cursor
/// is that of the batch, so a state of R ranks is a state of any other number of them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/messages/rank.h"
#include "actors/policy/policy.h"
#include "actors/rank/options.h"
#include "base/result.h"
#include "checkpoint/layout.h"
#include "comm/collectives.h"
#include "data/packing.h"
#include "rl/batch.h"
#include "rl/mismatch.h"
#include "train/trainer.h"

namespace troupe::actors {

/// The state at one version, copied out of the trainer.
struct Snapshot {
  PolicyVersion version;
  checkpoint::StateLayout layout;
  std::vector<std::byte> region;
  std::string record; ///< JSON: optimizer steps, data cursor.
};

class StageWork {
 public:
  /// Loads the policy. Errors: those of load_policy.
  [[nodiscard]] static Result<std::unique_ptr<StageWork>> create(const RankOptions& options);

  [[nodiscard]] model::Model& model() { return policy_.model; }
  /// May be read from any thread.
  [[nodiscard]] PolicyVersion version() const;

  /// `moved` is called after each part of a step.
  void on_move(std::function<void()> moved) { moved_ = std::move(moved); }

  /// Takes the state of a commit (verified), or that of the start. Errors: those of Repository::load; kInvalidArgument when the commit is
  /// of another model.
  [[nodiscard]] Status build(PolicyVersion version, const std::string& checkpoint);
  /// The other ranks, from now on; null: there are none. Borrowed.
  void join(comm::Collectives* group) { group_ = group; }
  /// Compares the bits of parameters and optimizer over all ranks. Errors: kCorrupt naming rank and tensor; those of the group.
  [[nodiscard]] Status expect_equal_ranks();
  /// Makes optimizer and data ready. With steps_done > 0 both continue from the commit that `build` loaded.
  [[nodiscard]] Status start_stage(std::int32_t stage, std::uint64_t steps_done);
  /// The peak learning rate of a stage, from its next step on.
  void set_lr(std::int32_t stage, double lr);
  /// One optimizer step on the data set (pretrain, sft) or on the groups (rl).
  [[nodiscard]] Result<StepDone> step(std::vector<BatchGroup> groups);
  /// After an error of step: whether every rank sees the same one (the sum was made, and it is what is wrong).
  [[nodiscard]] bool failed_alike() const { return summed_; }
  /// Whether the state is that of `version`: not after a failed step, until the next build.
  [[nodiscard]] bool intact() const { return intact_; }

  [[nodiscard]] Result<Snapshot> snapshot();
  [[nodiscard]] Result<std::uint64_t> export_model(std::int32_t stage, const std::string& folder);
  /// Log-probs of completions under the present weights, by the training forward.
  [[nodiscard]] Result<std::vector<std::vector<float>>> score(std::int32_t stage, std::span<const ProbeSequence> sequences);

 private:
  StageWork(const RankOptions& options, Policy policy) : options_(options), policy_(std::move(policy)) {}
  [[nodiscard]] const RankStage& stage() const { return options_.stages[static_cast<std::size_t>(stage_)]; }
  Status open_data();
  Result<StepDone> supervised_step();
  Result<StepDone> policy_step(std::vector<BatchGroup> groups);
  Result<std::vector<std::vector<float>>> reference_logprobs(std::span<const train::MicroBatch> batches);
  void advance();
  struct StepTotals;
  [[nodiscard]] std::vector<train::MicroBatch> batches_of(std::span<const rl::MicroBatch> micros, const std::function<std::vector<rl::MicroBatch>()>& cut_whole) const;
  Result<train::StepReport> summed_step(std::span<const train::MicroBatch> batches, double temperature, const train::LossFunction& loss, StepTotals& totals);
  [[nodiscard]] rl::Part part() const;

  const RankOptions& options_;
  Policy policy_;
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<std::uint64_t> step_{0};
  std::function<void()> moved_;
  std::map<std::int32_t, double> lr_; // of stages whose rate was set while the run went on
  comm::Collectives* group_ = nullptr;
  bool summed_ = false, intact_ = true;
  std::int32_t stage_ = -1;
  std::uint64_t stage_step_ = 0;
  std::optional<train::Trainer> trainer_;
  std::optional<model::Model> reference_;        // the stage's first weights, only when a KL coefficient is set
  std::vector<data::Example> examples_;
  std::optional<data::PackedStream> stream_;
  std::shared_ptr<const void> loaded_;           // checkpoint::Loaded that `build` read, until the stage is started
};

} // namespace troupe::actors
