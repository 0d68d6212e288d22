#include "protocol/control_log.h"

#include <nlohmann/json.hpp>
#include <string>

namespace troupe::protocol {

using namespace control;
using nlohmann::json;

namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

Status fold(State& state, const Term& r) {
  if (r.term <= state.term) {
    return fail(ErrorCode::kFenced,
                "term " + std::to_string(r.term) + " does not come after term " + std::to_string(state.term));
  }
  state.term = r.term;
  state.ended.reset();  // a resume of a run that had ended
  return {};
}

Status fold(State& state, const Wanted& r) {
  WantedCount& wanted = state.wanted[r.role];
  if (r.generation > wanted.generation) wanted = {r.count, r.generation};
  return {};
}

Status fold(State& state, const Epoch& r) {
  if (r.epoch < state.epoch) {
    return fail(ErrorCode::kFenced,
                "epoch " + std::to_string(r.epoch) + " comes before epoch " + std::to_string(state.epoch));
  }
  state.epoch = r.epoch;
  return {};
}

Status fold(State& state, const Progress& r) {
  if (r.position.version.epoch < state.epoch) {
    return fail(ErrorCode::kFenced, "progress of epoch " + std::to_string(r.position.version.epoch) + " in epoch " +
                                        std::to_string(state.epoch));
  }
  state.epoch = r.position.version.epoch;
  state.position = r.position;
  return {};
}

Status fold(State& state, const Committed& r) {
  if (state.committed && r.position.version < state.committed->version) {
    return fail(ErrorCode::kFenced, "the commit of " + to_string(r.position.version) + " is older than " +
                                        to_string(state.committed->version));
  }
  state.committed = r.position;
  return {};
}

Status fold(State& state, const Ended& r) {
  state.ended = r.exit;
  return {};
}

} // namespace

Status apply(State& state, const Record& record) {
  return std::visit([&](const auto& r) { return fold(state, r); }, record);
}

json to_json(const Record& record) {
  return std::visit(Overloaded{
                        [](const Term& r) -> json {
                          return {{"kind", "term"}, {"term", r.term}};
                        },
                        [](const Wanted& r) -> json {
                          return {{"kind", "wanted"},
                                  {"role", std::string(to_string(r.role))},
                                  {"count", r.count},
                                  {"generation", r.generation}};
                        },
                        [](const Epoch& r) -> json {
                          return {{"kind", "epoch"}, {"epoch", r.epoch}};
                        },
                        [](const Progress& r) -> json {
                          return {{"kind", "progress"}, {"position", to_json(r.position)}};
                        },
                        [](const Committed& r) -> json {
                          return {{"kind", "committed"}, {"position", to_json(r.position)}};
                        },
                        [](const Ended& r) -> json {
                          return {{"kind", "ended"}, {"exit", std::string(to_string(r.exit))}};
                        },
                    },
                    record);
}

Result<Record> record_from_json(const json& object) {
  try {
    const auto kind = object.at("kind").get<std::string>();
    if (kind == "term") return Term{object.at("term").get<std::uint64_t>()};
    if (kind == "epoch") return Epoch{object.at("epoch").get<std::uint32_t>()};
    if (kind == "wanted") {
      TROUPE_TRY(const Role role, parse_role(object.at("role").get<std::string>()));
      return Wanted{role, object.at("count").get<std::uint32_t>(), object.at("generation").get<std::uint64_t>()};
    }
    if (kind == "progress" || kind == "committed") {
      TROUPE_TRY(const RunPosition position, position_from_json(object.at("position")));
      return kind == "progress" ? Record{Progress{position}} : Record{Committed{position}};
    }
    if (kind == "ended") {
      const auto text = object.at("exit").get<std::string>();
      for (const RunExit exit : {RunExit::kDone, RunExit::kStopped, RunExit::kFailed}) {
        if (text == to_string(exit)) return Ended{exit};
      }
      return fail(ErrorCode::kCorrupt, "a run does not end as '" + text + "'");
    }
    return fail(ErrorCode::kCorrupt, "the control log has no record of kind '" + kind + "'");
  } catch (const json::exception& e) {
    return fail(ErrorCode::kCorrupt, std::string("a record of the control log does not read: ") + e.what());
  }
}

} // namespace troupe::protocol
