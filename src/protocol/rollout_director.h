/// @file
/// The asynchronous RL loop: routes groups of samples to rollout workers, forms batches, drives the trainer's steps and
/// the publication of weights, runs evaluations on the same workers.
///
/// - At most B = (S+1) P groups are open. A batch takes P complete groups out of the W oldest by ordinal of dispatch,
///   so the age at use is at most S + ceil((W-1)/P); it is checked again at consumption against the age bound.
/// - A slot is freed only after the pull of the version its step made, so every new group is born fresh.
/// - After step k: StartPublish(k) once the pull of k-1 is over, then the next train step, while workers pull.
/// - A worker is routable when it serves, is not suspect, not draining, no spare, and holds the served version.
///
/// One instance lives as long as the run; `BeginTraining` starts the loop of an rl stage. See rollout_events.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/evaluations.h"
#include "protocol/ledger.h"
#include "protocol/restart_policy.h"
#include "protocol/rollout_events.h"
#include "protocol/worker_pool.h"

namespace troupe::protocol {

/// What status lines and metrics show. Units: groups unless said otherwise.
struct RolloutStats {
  LedgerCounters prompts;
  std::uint64_t evaluation_dispatched = 0;  ///< Problems.
  std::uint64_t evaluation_delivered = 0;
  std::uint64_t evaluation_cancelled = 0;
  std::uint64_t evaluation_in_flight = 0;
  std::uint64_t waiting = 0;         ///< Open groups with a sample that no worker has.
  std::uint64_t running = 0;         ///< Open groups whose every sample is done or assigned, not complete.
  std::uint64_t complete = 0;        ///< Ready for a batch.
  std::uint64_t in_batch = 0;        ///< With the trainer.
  std::uint64_t slots_held = 0;      ///< Left groups whose slot waits for the pull.
  std::uint64_t slots = 0;           ///< B.
  std::uint64_t workers_routable = 0;
  std::uint64_t age_max = 0;         ///< Greatest policy age ever consumed, in steps.
  std::uint64_t fenced = 0;          ///< Messages of another epoch that were refused.
  std::uint64_t stalls = 0;          ///< Samples the watchdog re-issued.
  std::uint64_t steps_done = 0;      ///< Of this stage.
};

class RolloutDirector {
 public:
  explicit RolloutDirector(const RolloutOptions& options, const LedgerSnapshot& restored = {});

  /// Handles one event; `now` never goes backwards. `StepDone` goes to the run director too, whose effects are
  /// performed before these: its checkpoint order must reach the rank before the train step that this call may request.
  std::vector<rollout::Effect> handle(const rollout::Event& event, TimePoint now);

  /// For the commit record of the version the trainer holds; take it right after `handle(StepDone)` or `Drained`.
  [[nodiscard]] LedgerSnapshot snapshot() const { return ledger_.snapshot(); }
  [[nodiscard]] RolloutStats stats() const;
  [[nodiscard]] PolicyVersion trainer_version() const { return trainer_; }
  /// The version the routable workers hold; absent before the first publication of an epoch.
  [[nodiscard]] std::optional<PolicyVersion> served() const { return served_; }
  [[nodiscard]] const WorkerPool& workers() const { return pool_; }
  [[nodiscard]] const Ledger& ledger() const { return ledger_; }

 private:
  struct Train {  // a RequestTrainStep on its way
    rollout::RequestTrainStep request;
    TimePoint sent;
  };
  struct Publish {  // a StartPublish on its way
    PolicyVersion version;
    TimePoint sent;
  };

  void on(const rollout::TrainerReady& e);
  void on(const rollout::TrainerLost& e);
  void on(const rollout::RolledBack& e);
  void on(const rollout::StepDone& e);
  void on(const rollout::Published& e);
  void on(const rollout::PublishFailed& e);
  void on(const rollout::WorkerJoined& e);
  void on(const rollout::WorkerPulled& e);
  void on(const rollout::WorkerPullFailed& e);
  void on(const rollout::WorkerSuspected& e);
  void on(const rollout::WorkerCleared& e);
  void on(const rollout::WorkerDraining& e);
  void on(const rollout::WorkerGone& e);
  void on(const rollout::WorkerProgress& e);
  void on(const rollout::WorkRefused& e);
  void on(const rollout::SampleDone& e);
  void on(const rollout::SampleFailed& e);
  void on(const rollout::SampleReturned& e);
  void on(const rollout::BeginTraining& e);
  void on(const rollout::Evaluate& e);
  void on(const rollout::ServeWith& e);
  void on(const rollout::Pause& e);
  void on(const rollout::Resume& e);
  void on(const rollout::Drain& e);
  void on(const rollout::End& e);
  void on(const Wake& e);

  // rollout_loop.cpp: what follows from the state, run after every event
  void advance();
  void publish();
  void send_publish(PolicyVersion version);
  void tell_pulls();
  void finish_pull_round();
  void free_slots();
  void open_groups();
  void cancel_outdated(PolicyVersion upcoming);
  [[nodiscard]] std::vector<std::uint64_t> choose_batch(bool& exhausted) const;
  void request_step();
  void send_step();
  void finish_training();
  void arm();

  // rollout_routing.cpp: work to workers and back
  struct Owned {  // a sample some worker computes
    rollout::SampleName name;
    std::uint32_t attempt;
    WorkerId owner;
    TimePoint last_news;
  };
  void choose_spares();
  void route();
  void route_evaluations();
  void route_groups();
  void load(PoolWorker& worker, std::uint32_t samples);
  void unload(std::optional<WorkerId> id);
  [[nodiscard]] bool owns(const rollout::SampleName& name, WorkerId worker);
  bool fail_sample(const rollout::SampleName& name, std::uint32_t attempt, WorkerId owner);
  void give_back(const rollout::SampleName& name, std::uint32_t attempt, WorkerId owner, PolicyVersion oldest,
                 bool has_prefix);
  void cancel_group(std::uint64_t prompt, CancelReason reason);
  void drop_worker(WorkerId id, const std::string& reason);
  void promote(PoolWorker& worker);
  void release_if_empty(WorkerId id);
  [[nodiscard]] std::vector<Owned> owned_samples() const;
  void check_silence();
  void check_commands();
  void check_progress();
  [[nodiscard]] bool expects_progress() const;
  [[nodiscard]] std::string waiting_for() const;

  template <class E>
  void emit(E effect) {
    effects_.emplace_back(std::move(effect));
  }
  void note(LogLevel level, std::string text) { emit(Note{level, std::move(text)}); }
  void progressed() { last_progress_ = now_; }
  void fail(std::string reason);
  [[nodiscard]] static std::uint64_t age(PolicyVersion oldest, PolicyVersion at);
  [[nodiscard]] std::uint64_t slots_held() const;
  [[nodiscard]] bool fenced(std::uint32_t epoch);

  RolloutOptions options_;
  RolloutPlan plan_;
  Ledger ledger_;
  WorkerPool pool_;
  Evaluations evaluations_;

  bool trainer_alive_ = false;
  PolicyVersion trainer_;                           // what the trainer holds
  std::optional<PolicyVersion> served_;             // newest published
  std::optional<Publish> publishing_;               // at most one
  bool round_open_ = false;                         // workers are pulling served_
  TimePoint round_deadline_{};
  std::optional<Train> training_;                   // at most one
  std::map<PolicyVersion, std::uint64_t> held_;     // slots that wait for the pull of that version
  bool loop_ = false;                               // an rl stage is on
  std::optional<std::uint32_t> serve_with_;         // without: every worker gets work
  bool paused_ = false;
  bool draining_ = false;
  bool drained_sent_ = false;
  bool failed_ = false;
  std::uint64_t steps_done_ = 0;
  std::uint64_t barren_groups_ = 0;                 // left without a trainable group in between
  PoisonTracker poison_;
  std::uint64_t next_work_ = 1;
  std::uint64_t age_max_ = 0;
  std::uint64_t fenced_ = 0;
  std::uint64_t stalls_ = 0;
  TimePoint now_{};
  TimePoint last_progress_{};
  std::optional<TimePoint> silence_check_;           // the earliest time a sample can fall silent
  std::optional<TimePoint> armed_;
  std::vector<rollout::Effect> effects_;
};

} // namespace troupe::protocol
