#include "serve/call_reader.h"

#include <cmath>

#include "base/json.h"

namespace troupe::serve {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t kStopStringsMax = 16, kStopBytesMax = 1024;
const ordered_json kAbsent;

std::string shown(const ordered_json& value) {
  const std::string text = dump(value);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

} // namespace

CallReader::CallReader(std::string_view body) {
  // Checks depth and UTF-8 first; then again with the order of keys, which templates print.
  if (const auto checked = parse_json(body, "the body"); !checked) {
    problem("", "the body cannot be read: " + checked.error().message);
    return;
  }
  body_ = ordered_json::parse(body, nullptr, false);
  if (!body_.is_object()) problem("", "the body is " + std::string(body_.type_name()) + ", not a JSON object");
}

void CallReader::problem(const std::string& param, const std::string& text) {
  if (problems_.empty()) first_param_ = param;
  problems_ += (problems_.empty() ? "" : "; ") + text;
}

ApiError CallReader::error() const { return {400, problems_, "invalid_request_error", first_param_, {}}; }

const ordered_json& CallReader::get(const char* key) {
  known_.insert(key);
  const auto found = body_.find(key);
  return found == body_.end() ? kAbsent : *found;
}

void CallReader::string(const char* key, std::string& out) {
  const ordered_json& value = get(key);
  if (value.is_null()) return;
  if (value.is_string()) out = value.get<std::string>();
  else problem(key, std::string(key) + " must be a string, not " + shown(value));
}

void CallReader::boolean(const char* key, bool& out) {
  const ordered_json& value = get(key);
  if (value.is_null()) return;
  if (value.is_boolean()) out = value.get<bool>();
  else problem(key, std::string(key) + " must be true or false, not " + shown(value));
}

void CallReader::number(const char* key, double& out, double least, double most) {
  const ordered_json& value = get(key);
  if (value.is_null()) return;
  if (value.is_number() && value.get<double>() >= least && value.get<double>() <= most) out = value.get<double>();
  else problem(key, std::string(key) + " must be a number from " + ordered_json(least).dump() + " to " + ordered_json(most).dump() + ", not " + shown(value));
}

void CallReader::integer(const char* key, std::optional<std::int64_t>& out, std::int64_t least, std::int64_t most) {
  const ordered_json& value = get(key);
  if (value.is_null()) return;
  // An unsigned number above the signed ones is above any limit.
  const bool fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX);
  if (fits && value.get<std::int64_t>() >= least && value.get<std::int64_t>() <= most) out = value.get<std::int64_t>();
  else problem(key, std::string(key) + " must be a whole number from " + std::to_string(least) + " to " + std::to_string(most) + ", not " + shown(value));
}

void CallReader::integer(const char* key, int& out, std::int64_t least, std::int64_t most) {
  std::optional<std::int64_t> value;
  integer(key, value, least, most);
  if (value) out = static_cast<int>(*value);
}

void CallReader::ignore(std::initializer_list<const char*> keys) { known_.insert(keys.begin(), keys.end()); }

void CallReader::refuse_unless(const char* key, const ordered_json& neutral) {
  const ordered_json& value = get(key);
  if (value.is_null() || value == neutral) return;
  problem(key, std::string(key) + " is not supported (only " + dump(neutral) + "), but is " + shown(value));
}

void CallReader::refuse_unknown() {
  for (const auto& [key, value] : body_.items())
    if (!known_.contains(key)) problem(key, "the field '" + key.substr(0, 60) + "' is not known");
}

namespace {

void read_stop(CallReader& reader, std::vector<std::string>& out) {
  const ordered_json& stop = reader.get("stop");
  if (stop.is_null()) return;
  const ordered_json list = stop.is_string() ? ordered_json::array({stop}) : stop;
  bool good = list.is_array() && list.size() <= kStopStringsMax;
  for (const ordered_json& one : good ? list : ordered_json::array()) {
    good = one.is_string() && !one.get_ref<const std::string&>().empty() && one.get_ref<const std::string&>().size() <= kStopBytesMax;
    if (!good) break;
    out.push_back(one.get<std::string>());
  }
  if (!good) reader.problem("stop", "stop must be a string or up to " + std::to_string(kStopStringsMax) + " of them, none of them empty");
}

} // namespace

void read_common(CallReader& reader, const CallLimits& limits, Call& call) {
  reader.string("model", call.model);
  reader.integer("n", call.completions, 1, limits.completions_max);
  std::optional<std::int64_t> most, newer, seed;
  reader.integer("max_tokens", most, 1, 1 << 24);
  reader.integer("max_completion_tokens", newer, 1, 1 << 24);
  if (most && newer && *most != *newer) reader.problem("max_tokens", "max_tokens and max_completion_tokens contradict each other");
  if (most || newer) call.max_tokens = static_cast<int>(newer.value_or(most.value_or(0)));
  reader.integer("seed", seed, INT64_MIN, INT64_MAX);
  if (seed) call.seed = static_cast<std::uint64_t>(*seed);
  reader.number("temperature", call.sampling.temperature, 0, 2);
  if (call.sampling.temperature > 0 && call.sampling.temperature < 1e-3) call.sampling.temperature = 0; // colder than float32 can tell from greedy
  reader.number("top_p", call.sampling.top_p, 0, 1);
  if (call.sampling.top_p == 0) call.sampling.top_k = 1; // what it means: only the most likely token
  if (call.sampling.top_p == 0) call.sampling.top_p = 1;
  reader.number("min_p", call.sampling.min_p, 0, 1);
  reader.integer("top_k", call.sampling.top_k, 0, 1 << 24);
  read_stop(reader, call.sampling.stop_strings);
  reader.boolean("stream", call.stream);
  const ordered_json& options = reader.get("stream_options");
  if (options.is_object() && call.stream) {
    const ordered_json usage = options.value("include_usage", ordered_json(false));
    if (usage.is_boolean()) call.include_usage = usage.get<bool>();
    else reader.problem("stream_options", "stream_options.include_usage must be true or false");
  } else if (!options.is_null()) {
    reader.problem("stream_options", "stream_options must be an object, and is for streams only");
  }
  reader.refuse_unless("frequency_penalty", 0);
  reader.refuse_unless("presence_penalty", 0);
  reader.refuse_unless("logit_bias", ordered_json::object());
  reader.ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"});
}

} // namespace troupe::serve
