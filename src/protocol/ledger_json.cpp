// The ledger's part of the commit record.
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "protocol/ledger.h"

namespace troupe::protocol {

using nlohmann::json;

json to_json(const LedgerSnapshot& snapshot) {
  const LedgerCounters& c = snapshot.counters;
  json cancelled = json::object();
  for (std::size_t i = 0; i < kCancelReasons; ++i) {
    cancelled[std::string(to_string(static_cast<CancelReason>(i)))] = c.cancelled_by[i];
  }
  return {{"next_prompt", snapshot.next_prompt}, {"pending", snapshot.pending},     {"dispatched", c.dispatched},
          {"delivered", c.delivered},            {"cancelled", cancelled},          {"in_flight", c.in_flight},
          {"duplicates", c.duplicates},          {"late", c.late},                  {"retries", c.retries}};
}

namespace {

Result<std::uint64_t> count(const json& object, const std::string& key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned()) {
    return fail(ErrorCode::kCorrupt, "the ledger's '" + key + "' is missing or not a count");
  }
  return it->get<std::uint64_t>();
}

Status check(const LedgerSnapshot& s) {
  const LedgerCounters& c = s.counters;
  if (c.dispatched != c.delivered + c.cancelled() + c.in_flight) {
    return fail(ErrorCode::kCorrupt,
                "the ledger does not balance: dispatched is not delivered + cancelled + in flight");
  }
  const bool ascending =
      std::adjacent_find(s.pending.begin(), s.pending.end(), std::greater_equal<>()) == s.pending.end();
  if (!ascending || (!s.pending.empty() && s.pending.back() >= s.next_prompt) || s.pending.size() < c.in_flight) {
    return fail(ErrorCode::kCorrupt, "the ledger's pending prompts are not ascending ids below next_prompt");
  }
  return {};
}

} // namespace

Result<LedgerSnapshot> ledger_from_json(const json& object) {
  if (!object.is_object()) return fail(ErrorCode::kCorrupt, "the ledger is not a JSON object");
  LedgerSnapshot s;
  LedgerCounters& c = s.counters;
  TROUPE_TRY(s.next_prompt, count(object, "next_prompt"));
  TROUPE_TRY(c.dispatched, count(object, "dispatched"));
  TROUPE_TRY(c.delivered, count(object, "delivered"));
  TROUPE_TRY(c.in_flight, count(object, "in_flight"));
  TROUPE_TRY(c.duplicates, count(object, "duplicates"));
  TROUPE_TRY(c.late, count(object, "late"));
  TROUPE_TRY(c.retries, count(object, "retries"));
  const auto cancelled = object.find("cancelled");
  if (cancelled == object.end() || !cancelled->is_object())
    return fail(ErrorCode::kCorrupt, "the ledger's 'cancelled' is missing");
  for (std::size_t i = 0; i < kCancelReasons; ++i) {
    TROUPE_TRY(c.cancelled_by[i], count(*cancelled, std::string(to_string(static_cast<CancelReason>(i)))));
  }
  const auto pending = object.find("pending");
  if (pending == object.end() || !pending->is_array())
    return fail(ErrorCode::kCorrupt, "the ledger's 'pending' is missing");
  for (const json& prompt : *pending) {
    if (!prompt.is_number_unsigned())
      return fail(ErrorCode::kCorrupt, "the ledger's 'pending' holds something that is no prompt id");
    s.pending.push_back(prompt.get<std::uint64_t>());
  }
  TROUPE_TRY_STATUS(check(s));
  return s;
}

} // namespace troupe::protocol
