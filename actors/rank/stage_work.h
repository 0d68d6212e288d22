/// @file
/// What a rank computes: model, optimizer and data of the present stage. Lives on the work thread; knows no actors.
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
#include "data/packing.h"
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
  /// Makes optimizer and data ready. With steps_done > 0 both continue from the commit that `build` loaded.
  [[nodiscard]] Status start_stage(std::int32_t stage, std::uint64_t steps_done);
  /// The peak learning rate of a stage, from its next step on.
  void set_lr(std::int32_t stage, double lr);
  /// One optimizer step on the data set (pretrain, sft) or on the groups (rl).
  [[nodiscard]] Result<StepDone> step(std::vector<BatchGroup> groups);

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

  const RankOptions& options_;
  Policy policy_;
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<std::uint64_t> step_{0};
  std::function<void()> moved_;
  std::map<std::int32_t, double> lr_; // of stages whose rate was set while the run went on
  std::int32_t stage_ = -1;
  std::uint64_t stage_step_ = 0;
  std::optional<train::Trainer> trainer_;
  std::optional<model::Model> reference_;        // the stage's first weights, only when a KL coefficient is set
  std::vector<data::Example> examples_;
  std::optional<data::PackedStream> stream_;
  std::shared_ptr<const void> loaded_;           // checkpoint::Loaded that `build` read, until the stage is started
};

} // namespace troupe::actors
