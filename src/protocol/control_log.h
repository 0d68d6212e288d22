/// @file
/// The control state that survives the head: a pure fold over records. Framing, checksums and fsync of the log file
/// are done elsewhere; a record here is one JSON object.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <variant>

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
/// A new incarnation of the training state.
struct Epoch {
  std::uint32_t epoch = 0;
};
struct Progress {
  RunPosition position;
};
/// A checkpoint was committed; a resume starts from the newest.
struct Committed {
  RunPosition position;
};
struct Ended {
  RunExit exit = RunExit::kDone;
};
using Record = std::variant<Term, Wanted, Epoch, Progress, Committed, Ended>;

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
  RunPosition position;
  std::optional<RunPosition> committed;
  std::optional<RunExit> ended;
  friend bool operator==(const State&, const State&) = default;
};

} // namespace control

/// Folds one record in. Errors: kFenced for a term that does not rise or an epoch that falls; the state is unchanged.
/// A Wanted of an older generation is no error and changes nothing: the last one wins.
Status apply(control::State& state, const control::Record& record);

[[nodiscard]] nlohmann::json to_json(const control::Record& record);
/// Errors: kCorrupt naming the field.
[[nodiscard]] Result<control::Record> record_from_json(const nlohmann::json& json);

} // namespace troupe::protocol
