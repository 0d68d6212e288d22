#include "protocol/control_log.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/json.h"

namespace troupe::protocol {

using namespace control;
using nlohmann::json;

namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

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

constexpr std::uint64_t kPromptsAhead = 1 << 20;  // born between one step and the next, at most

Status fold(State& state, const Ordered& r) {
  if (r.from != state.position.version) return {};  // of a state that was rolled back
  for (const std::uint64_t prompt : r.prompts)
    if (prompt >= state.ledger.next_prompt && prompt - state.ledger.next_prompt >= kPromptsAhead)
      return fail(ErrorCode::kCorrupt, "a step was ordered of prompt " + std::to_string(prompt) + ", far beyond prompt " +
                                           std::to_string(state.ledger.next_prompt) + " that comes next");
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

bool may_return_to(const State& state, PolicyVersion commit, const LedgerSnapshot& ledger) {
  const PolicyVersion at = state.position.version;
  if (commit.epoch == at.epoch) return true;
  return commit.epoch < at.epoch && commit.step <= at.step && ledger.counters.delivered <= state.ledger.counters.delivered;
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

namespace {

Result<Record> ended_from_json(const json& object) {
  TROUPE_TRY(const auto text, json_field<std::string>(object, "exit"));
  for (const RunExit exit : {RunExit::kDone, RunExit::kStopped, RunExit::kFailed})
    if (text == to_string(exit)) return Ended{exit};
  return fail(ErrorCode::kCorrupt, "a run does not end as '" + text + "'");
}

Result<Record> ordered_from_json(const json& object) {
  Ordered r;
  TROUPE_TRY(r.from.epoch, json_field<std::uint32_t>(object, "epoch"));
  TROUPE_TRY(r.from.step, json_field<std::uint64_t>(object, "step"));
  const auto prompts = object.find("prompts");
  if (prompts == object.end() || !prompts->is_array()) return fail(ErrorCode::kCorrupt, "field \"prompts\" is missing or of the wrong kind");
  for (const json& prompt : *prompts) {
    if (!prompt.is_number_unsigned()) return fail(ErrorCode::kCorrupt, "field \"prompts\" holds something that is no prompt id");
    r.prompts.push_back(prompt.get<std::uint64_t>());
  }
  return r;
}

Result<Record> wanted_from_json(const json& object) {
  Wanted r;
  TROUPE_TRY(const auto role, json_field<std::string>(object, "role"));
  TROUPE_TRY(r.role, parse_role(role));
  TROUPE_TRY(r.count, json_field<std::uint32_t>(object, "count"));
  TROUPE_TRY(r.generation, json_field<std::uint64_t>(object, "generation"));
  return r;
}

Result<json> member(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return fail(ErrorCode::kCorrupt, std::string("field \"") + key + "\" is missing");
  return *found;
}

} // namespace

Result<Record> record_from_json(const json& object) {
  TROUPE_TRY(const auto kind, json_field<std::string>(object, "kind"));
  if (kind == "wanted") return wanted_from_json(object);
  if (kind == "ordered") return ordered_from_json(object);
  if (kind == "ended") return ended_from_json(object);
  if (kind == "term") return json_field<std::uint64_t>(object, "term").map([](std::uint64_t term) { return Record(Term{term}); });
  if (kind == "epoch") return json_field<std::uint32_t>(object, "epoch").map([](std::uint32_t epoch) { return Record(Epoch{epoch}); });
  if (kind == "setting") return json_field<std::string>(object, "text").map([](std::string text) { return Record(Setting{std::move(text)}); });
  if (kind == "tally") return json_field<std::string>(object, "json").map([](std::string text) { return Record(Tally{std::move(text)}); });
  if (kind == "agent") {
    Agent r;
    TROUPE_TRY(r.pid, json_field<std::int32_t>(object, "pid"));
    TROUPE_TRY(r.start_ticks, json_field<std::uint64_t>(object, "start_ticks"));
    return r;
  }
  if (kind != "progress" && kind != "committed") return fail(ErrorCode::kCorrupt, "the control log has no record of kind '" + kind + "'");
  TROUPE_TRY(const auto where, member(object, "position"));
  TROUPE_TRY(const RunPosition position, position_from_json(where));
  if (kind == "committed") return Committed{position};
  TROUPE_TRY(const auto counts, member(object, "ledger"));
  TROUPE_TRY(auto ledger, ledger_from_json(counts));
  return Progress{position, std::move(ledger)};
}

} // namespace troupe::protocol
