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

Status fold(State& state, const Setting& r) {
  const std::string key = r.text.substr(0, r.text.find('=') + 1);
  std::erase_if(state.settings, [&](const std::string& earlier) { return earlier.starts_with(key); });
  state.settings.push_back(r.text);
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
  state.ledger = r.ledger;
  state.ordered.clear();
  state.order_open = false;
  return {};
}

Status fold(State& state, const Ordered& r) {
  if (r.from != state.position.version) return {};  // of a state that was rolled back
  state.ordered = r.prompts;
  state.order_open = true;
  return {};
}

Status fold(State& state, const Agent& r) {
  state.agent = r;
  return {};
}

Status fold(State& state, const Tally& r) {
  state.tally = r.json;
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

std::optional<WarmStart> warm_start(const State& state, PolicyVersion rank) {
  const RunPosition& at = state.position;
  if (state.ended || rank.epoch != state.epoch || at.version.epoch != state.epoch) return std::nullopt;
  if (rank == at.version) return WarmStart{at, recalled(state.ledger), false};
  if (!state.order_open || rank.step != at.version.step + 1) return std::nullopt;
  return WarmStart{{at.stage, at.stage_step + 1, rank}, recalled(after_delivery(state.ledger, state.ordered)), true};
}

std::vector<Record> records_of(const State& state) {
  std::vector<Record> records;
  if (state.term > 0) records.emplace_back(Term{state.term});
  for (const auto& [role, wanted] : state.wanted) records.emplace_back(Wanted{role, wanted.count, wanted.generation});
  for (const std::string& setting : state.settings) records.emplace_back(Setting{setting});
  records.emplace_back(Progress{state.position, state.ledger});
  records.emplace_back(Epoch{state.epoch});
  if (state.order_open) records.emplace_back(Ordered{state.position.version, state.ordered});
  if (state.agent) records.emplace_back(*state.agent);
  if (!state.tally.empty()) records.emplace_back(Tally{state.tally});
  if (state.committed) records.emplace_back(Committed{*state.committed});
  if (state.ended) records.emplace_back(Ended{*state.ended});
  return records;
}

bool must_be_durable(const Record& record) {
  return !std::holds_alternative<Progress>(record) && !std::holds_alternative<Ordered>(record) && !std::holds_alternative<Tally>(record);
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
                        [](const Setting& r) -> json {
                          return {{"kind", "setting"}, {"text", r.text}};
                        },
                        [](const Epoch& r) -> json {
                          return {{"kind", "epoch"}, {"epoch", r.epoch}};
                        },
                        [](const Progress& r) -> json {
                          return {{"kind", "progress"}, {"position", to_json(r.position)}, {"ledger", to_json(r.ledger)}};
                        },
                        [](const Ordered& r) -> json {
                          return {{"kind", "ordered"}, {"epoch", r.from.epoch}, {"step", r.from.step}, {"prompts", r.prompts}};
                        },
                        [](const Agent& r) -> json {
                          return {{"kind", "agent"}, {"pid", r.pid}, {"start_ticks", r.start_ticks}};
                        },
                        [](const Tally& r) -> json {
                          return {{"kind", "tally"}, {"json", r.json}};
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
    if (kind == "setting") return Setting{object.at("text").get<std::string>()};
    if (kind == "epoch") return Epoch{object.at("epoch").get<std::uint32_t>()};
    if (kind == "wanted") {
      TROUPE_TRY(const Role role, parse_role(object.at("role").get<std::string>()));
      return Wanted{role, object.at("count").get<std::uint32_t>(), object.at("generation").get<std::uint64_t>()};
    }
    if (kind == "progress" || kind == "committed") {
      TROUPE_TRY(const RunPosition position, position_from_json(object.at("position")));
      if (kind == "committed") return Committed{position};
      TROUPE_TRY(auto ledger, ledger_from_json(object.at("ledger")));
      return Progress{position, std::move(ledger)};
    }
    if (kind == "ordered") {
      return Ordered{{object.at("epoch").get<std::uint32_t>(), object.at("step").get<std::uint64_t>()},
                     object.at("prompts").get<std::vector<std::uint64_t>>()};
    }
    if (kind == "agent") return Agent{object.at("pid").get<std::int32_t>(), object.at("start_ticks").get<std::uint64_t>()};
    if (kind == "tally") return Tally{object.at("json").get<std::string>()};
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
