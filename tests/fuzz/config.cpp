// An experiment: TOML, or JSON when it begins with a brace; to the typed structs and back.
#include "base/json.h"
#include "cli/experiment/load.h"
#include "fuzz/support.h"

using namespace troupe;

namespace {

experiment::Loaded load(std::string_view text) {
  if (!text.starts_with('{')) {
    const fuzz::MemoryFile input(text);
    return experiment::load_experiment({input.path()});
  }
  const auto document = parse_json(text, "run.json");
  return fuzz::is_good(document, {ErrorCode::kCorrupt}) ? experiment::load_experiment_json(*document, "run.json") : experiment::Loaded{};
}

void check_diagnostics(const config::Diagnostics& diagnostics) {
  for (const auto& d : diagnostics.sorted()) TROUPE_CHECK(!d.message.empty(), "an error without a word");
  TROUPE_CHECK(!diagnostics.text().empty(), "what the user reads");
  (void)diagnostics.json();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryBound bound(size, 256 << 20, 2000);  // a sweep may have a thousand points
  const auto loaded = load(fuzz::text_of(data, size));
  if (!loaded.ok()) {
    check_diagnostics(loaded.diagnostics);
    TROUPE_CHECK(loaded.points.empty(), "errors leave nothing to run");
    return 0;
  }
  if (loaded.points.empty()) return 0;  // it was no JSON
  const auto& point = loaded.points.back();
  const auto json = experiment::experiment_to_json(point.experiment);
  const auto again = experiment::experiment_from_json(json);
  TROUPE_CHECK(again, "what was read is read again from JSON: " + again.error().to_string());
  TROUPE_CHECK(experiment::experiment_to_json(*again) == json, "and is the same");
  const fuzz::MemoryFile toml(experiment::experiment_toml(point.experiment));
  const auto from_toml = experiment::load_experiment({toml.path()});
  TROUPE_CHECK(from_toml.ok(), "what was read is read again from TOML: " + from_toml.diagnostics.text());
  TROUPE_CHECK(experiment::experiment_to_json(from_toml.points.front().experiment) == json, "and is the same");
  (void)experiment::experiment_toml_with_origins(loaded, point);
  return 0;
}
