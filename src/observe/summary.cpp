#include "observe/summary.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/units.h"
#include "observe/console.h"

namespace troupe::observe {
namespace {

nlohmann::json or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

// Calls f(json pointer, member) for every field: the one list of names.
template <class S, class F>
void each_field(S& s, F&& f) {
  f("/wall_s", s.wall_s);
  f("/rss_peak_mib", s.rss_peak_mib);
  f("/steps", s.steps);
  f("/tokens", s.tokens);
  f("/completions", s.completions);
  f("/eval/before", s.eval_before);
  f("/eval/after", s.eval_after);
  f("/restarts", s.restarts);
  f("/prompts/dispatched", s.prompts_dispatched);
  f("/prompts/delivered", s.prompts_delivered);
  f("/prompts/cancelled", s.prompts_cancelled);
  f("/policy_age_max", s.policy_age_max);
  f("/logprob_diff_max", s.logprob_diff_max);
  f("/logprob_tokens_compared", s.logprob_tokens_compared);
  f("/exit", s.exit);
}

struct Writer {
  nlohmann::json& out;
  void operator()(const char* pointer, const std::optional<double>& value) const {
    out[nlohmann::json::json_pointer(pointer)] = or_null(value);
  }
  void operator()(const char* pointer, double value) const {
    out[nlohmann::json::json_pointer(pointer)] = or_null(value);
  }
  void operator()(const char* pointer, std::uint64_t value) const {
    out[nlohmann::json::json_pointer(pointer)] = value;
  }
  void operator()(const char* pointer, const std::string& value) const {
    out[nlohmann::json::json_pointer(pointer)] = value;
  }
};

struct Reader {
  const nlohmann::json& in;
  std::string& wrong;

  const nlohmann::json* at(const char* pointer, bool (nlohmann::json::*is)() const noexcept, bool null_too) const {
    const nlohmann::json::json_pointer path(pointer);
    const nlohmann::json* value = in.contains(path) ? &in.at(path) : nullptr;
    if (value != nullptr && ((value->*is)() || (null_too && value->is_null()))) return value;
    if (wrong.empty()) wrong = pointer;
    return nullptr;
  }
  void operator()(const char* pointer, std::optional<double>& value) const {
    if (const auto* j = at(pointer, &nlohmann::json::is_number, true))
      value = j->is_null() ? std::nullopt : std::optional(j->get<double>());
  }
  void operator()(const char* pointer, double& value) const {
    if (const auto* j = at(pointer, &nlohmann::json::is_number, false)) value = j->get<double>();
  }
  void operator()(const char* pointer, std::uint64_t& value) const {
    if (const auto* j = at(pointer, &nlohmann::json::is_number_unsigned, false)) value = j->get<std::uint64_t>();
  }
  void operator()(const char* pointer, std::string& value) const {
    if (const auto* j = at(pointer, &nlohmann::json::is_string, false)) value = j->get<std::string>();
  }
};

std::string percent(const std::optional<double>& value) {
  char text[32] = "not measured";
  if (value) std::snprintf(text, sizeof text, "%.1f%%", *value * 100);
  return text;
}

}  // namespace

nlohmann::json summary_json(const Summary& summary) {
  nlohmann::json out = nlohmann::json::object();
  each_field(summary, Writer{out});
  return out;
}

Result<Summary> summary_from_json(const nlohmann::json& document) {
  Summary summary;
  std::string wrong;
  each_field(summary, Reader{document, wrong});
  if (!wrong.empty())
    return fail(ErrorCode::kCorrupt, "summary.json: the field " + wrong + " is missing or has the wrong type");
  return summary;
}

Status write_summary(const std::filesystem::path& path, const Summary& summary) {
  return write_file_atomic(path,
                           summary_json(summary).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

std::string summary_table(const Summary& s) {
  const auto text = [](std::uint64_t value) { return std::to_string(value); };
  char memory[32], difference[32] = "not compared";
  std::snprintf(memory, sizeof memory, "%.0f MiB", s.rss_peak_mib);
  if (s.logprob_diff_max) std::snprintf(difference, sizeof difference, "%.3g", *s.logprob_diff_max);
  std::vector<std::vector<std::string>> rows = {
      {"result", s.exit},
      {"time", format_duration(from_seconds(s.wall_s))},
      {"memory, peak of all processes", memory},
      {"optimizer steps", text(s.steps)},
      {"trained tokens", text(s.tokens)},
      {"completions", text(s.completions)},
      {"held-out accuracy before", percent(s.eval_before)},
      {"held-out accuracy after", percent(s.eval_after)},
      {"prompts dispatched / delivered / cancelled",
       text(s.prompts_dispatched) + " / " + text(s.prompts_delivered) + " / " + text(s.prompts_cancelled)},
      {"policy age, most", text(s.policy_age_max) + " steps"},
      {"log-prob difference, most", std::string(difference) + " over " + text(s.logprob_tokens_compared) + " tokens"},
      {"workers replaced", text(s.restarts)},
  };
  return format_table({"run", ""}, rows);
}

}  // namespace troupe::observe
