/// @file
/// Every bound and deadline of the protocol cores, with its default. The config binds these structs to TOML keys.
#pragma once

#include <cstdint>
#include <optional>

#include "base/units.h"

namespace troupe::protocol {

using namespace std::chrono_literals;

/// The asynchronous RL loop of one stage. Source of the bounds: research/torchtitan.md 3.2, 3.3.
struct RolloutPlan {
  std::uint32_t prompts_per_step = 8;    ///< P: groups in a training batch, >= 1.
  std::uint32_t samples_per_prompt = 8;  ///< G: samples in a group, >= 1.
  std::uint32_t staleness = 1;           ///< S: steps generation may run ahead; 0 = on policy, it waits for the pull.
  double window_fraction = 0.3;          ///< f in [0, 1]: look-ahead as a part of the buffer; W = 1 when S = 0.
  std::optional<std::uint32_t> max_age;  ///< Bound on policy age at consumption; absent = the worst the loop allows.
  std::uint64_t steps = 10;              ///< Optimizer steps of the stage.
  std::uint32_t attempts = 3;            ///< Times a sample is tried before its group is cancelled, >= 1.
  bool drop_zero_signal = true;          ///< Drop and refill groups whose trainable rewards are equal; off for G = 1.
  std::uint32_t empty_batches_max = 10;  ///< Batches in a row without one trainable group before the run fails.
  std::optional<std::uint64_t> prompt_limit;  ///< Prompts in the stream; absent = endless. May grow on a resume.
};

/// B = (S + 1) P: groups dispatched and not yet released.
[[nodiscard]] std::uint64_t buffer_groups(const RolloutPlan& plan);
/// W = max(1, floor(f B)), and 1 when S = 0: how far beyond the oldest group a batch may reach.
[[nodiscard]] std::uint64_t window_groups(const RolloutPlan& plan);
/// S + ceil((W - 1) / P): the greatest age a batch can have by construction.
[[nodiscard]] std::uint64_t worst_age(const RolloutPlan& plan);
/// `max_age` or, when absent, `worst_age`: what is enforced at consumption.
[[nodiscard]] std::uint64_t age_bound(const RolloutPlan& plan);

struct RolloutOptions {
  std::uint32_t worker_samples_max = 256;  ///< Samples assigned to one rollout worker at a time.
  std::uint32_t workers_max = 4096;        ///< Rollout workers the director keeps track of; further ones are refused.
  Duration pull_deadline = 60s;            ///< A worker that has not pulled a version by then is reported unfit.
  Duration pull_retry = 500ms;             ///< Pause before a failed pull is asked for again.
  Duration command_resend = 5s;            ///< An unanswered command is sent again (commands are idempotent).
  Duration sample_silence = 60s;           ///< A sample without news for this long is re-issued elsewhere.
  Duration progress_deadline = 600s;       ///< Without any progress for this long the run fails, naming ids and owners.
};

struct PublicationOptions {
  Duration lease = 30s;            ///< A reader that has not finished by then loses its slot.
  std::uint32_t leases_max = 256;  ///< Leases on one slot at a time; further readers are told to retry.
};

struct RestartOptions {
  std::uint32_t restarts_max = 5;   ///< Restarts of one role allowed within `window`.
  Duration window = 600s;           ///< Sliding window of the intensity.
  Duration backoff_first = 200ms;   ///< Pause before the first restart; doubles with every further one in the window.
  Duration backoff_max = 30s;       ///< Cap of the pause.
};

struct MembershipOptions {
  Duration suspect_after = 1s;       ///< Silence after which a worker gets no new work.
  Duration dead_after = 3s;          ///< Silence after which its agent is told to kill it.
  Duration work_silence = 10min;     ///< A work thread that is busy and does not move for this long is stuck: killed.
  Duration kill_repeat = 2s;         ///< An unconfirmed kill is sent again.
  Duration join_deadline = 60s;      ///< From the start of a process to its registration.
  Duration drain_deadline = 10s;     ///< What a leaving worker gets to finish or hand back its samples.
  Duration drain_grace = 5s;         ///< After the drain deadline, before it is killed.
  std::uint32_t workers_max = 4096;  ///< Wanted workers of one role at most.
  std::uint32_t spares = 0;          ///< Rollout workers kept beyond the wanted ones while any are wanted.
  std::uint32_t nodes_max = 1024;    ///< Machines of one run at most.
  RestartOptions restart;            ///< Applies to each role on its own.
};

struct CheckpointCommitOptions {
  Duration prepare_deadline = 30s;  ///< The writer has memory for the state.
  Duration copy_deadline = 120s;    ///< Every rank has copied its state.
  Duration write_deadline = 600s;   ///< Every byte is on disk and verified.
  Duration commit_deadline = 60s;   ///< The record is renamed into place and durable.
  std::uint32_t keep = 3;           ///< Newest checkpoints kept; 0 = all.
};

struct RunOptions {
  Duration mesh_deadline = 120s;     ///< From the order to build the mesh until every rank holds the state.
  Duration stop_deadline = 120s;     ///< From the first stop request until the run is saved; then it ends unsaved.
  Duration step_deadline = 3600s;    ///< One optimizer step; beyond it the mesh counts as lost.
  std::uint32_t rollbacks_max = 8;   ///< Rollbacks within `rollback_window` before the run fails.
  Duration rollback_window = 6h;     ///< Sliding window of the rollback count.
};

} // namespace troupe::protocol
