/// @file
/// The control state that survives the head: a pure fold over records. Framing, checksums and fsync of the log file
/// are done elsewhere; a record here is one JSON object.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "protocol/ledger.h"
#include "protocol/run_director.h"
#include "protocol/types.h"

namespace troupe::protocol {

namespace control {

/// A supervisor started. Commands of lower terms are refused from here on.
struct Term {
  std::uint64_t term = 0;
};
/// `troupe scale`, numbered by the supervisor.
struct Wanted {
  Role role = Role::kRollout;
  std::uint32_t count = 0;
  std::uint64_t generation = 0;
};
/// `troupe config set`: "optim.lr=1e-4", as it would stand behind --set. A resume applies them in this order.
struct Setting {
  std::string text;
};
/// A new incarnation of the training state.
struct Epoch {
  std::uint32_t epoch = 0;
};
/// A step is done, or a stage is entered: where the run is, and what became of its prompts so far.
struct Progress {
  RunPosition position;
  LedgerSnapshot ledger;
};
/// Written before the order to make a step from `from` leaves: the prompts it consumes if the rank makes it (none: pretrain, sft).
struct Ordered {
  PolicyVersion from;
  std::vector<std::uint64_t> prompts;
};
/// The node agent of the head's own machine. It outlives the head.
struct Agent {
  std::int32_t pid = 0;
  std::uint64_t start_ticks = 0;
  friend bool operator==(const Agent&, const Agent&) = default;
};
/// What the head counts for people (tokens, restarts, ...), as a JSON text of its own.
struct Tally {
  std::string json;
};
/// A checkpoint was committed; a resume starts from the newest.
struct Committed {
  RunPosition position;
};
struct Ended {
  RunExit exit = RunExit::kDone;
};
using Record = std::variant<Term, Wanted, Setting, Epoch, Progress, Ordered, Agent, Tally, Committed, Ended>;

struct WantedCount {
  std::uint32_t count = 0;
  std::uint64_t generation = 0;
  friend bool operator==(const WantedCount&, const WantedCount&) = default;
};

/// What a restarted supervisor knows.
struct State {
  std::uint64_t term = 0;
  std::uint32_t epoch = 0;
  std::map<Role, WantedCount> wanted;
  std::vector<std::string> settings; ///< One of a key, the newest.
  RunPosition position;
  LedgerSnapshot ledger;
  std::vector<std::uint64_t> ordered; ///< Prompts of the step that was ordered from `position`, if one was.
  bool order_open = false;            ///< It was.
  std::optional<Agent> agent;
  std::string tally;
  std::optional<RunPosition> committed;
  std::optional<RunExit> ended;
  friend bool operator==(const State&, const State&) = default;
};

/// Where a restarted head goes on without a new epoch.
struct WarmStart {
  RunPosition position;
  LedgerSnapshot ledger;
  bool step_ahead = false; ///< The rank has made the step that was ordered last, and nobody was there to hear of it.
};

} // namespace control

/// What the log and a living rank that holds `rank` add up to; nothing when they do not fit: the run goes back to its newest commit.
[[nodiscard]] std::optional<control::WarmStart> warm_start(const control::State& state, PolicyVersion rank);

/// Whether the living run that the log tells of may be taken back to a commit. One that a lost epoch left on disk unheard may be ahead of it:
/// that commit is where a cold start goes on, but not what a warm one goes back to.
[[nodiscard]] bool may_return_to(const control::State& state, PolicyVersion commit, const LedgerSnapshot& ledger);

/// The fewest records that fold into `state`.
[[nodiscard]] std::vector<control::Record> records_of(const control::State& state);

/// Whether a record must be on disk before its effect: losing it with the machine would break a promise. The others only need to survive
/// the head's process.
[[nodiscard]] bool must_be_durable(const control::Record& record);

/// Folds one record in. Errors: kFenced for a term that does not rise or an epoch that falls; the state is unchanged.
/// A Wanted of an older generation is no error and changes nothing: the last one wins.
Status apply(control::State& state, const control::Record& record);

[[nodiscard]] nlohmann::json to_json(const control::Record& record);
/// Errors: kCorrupt naming the field.
[[nodiscard]] Result<control::Record> record_from_json(const nlohmann::json& json);

} // namespace troupe::protocol
