// A config.json of Hugging Face's: to the model as data and back.
#include "base/json.h"
#include "fuzz/support.h"
#include "model/rope.h"
#include "model/spec.h"

using namespace troupe;
using namespace troupe::model;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryBound bound(size, 32 << 20, 300);  // up to 4096 layers
  const auto json = parse_json(fuzz::text_of(data, size), "config.json");
  if (!fuzz::is_good(json, {ErrorCode::kCorrupt})) return 0;
  const auto spec = spec_from_config(*json, "config.json");
  if (!fuzz::is_good(spec, {ErrorCode::kInvalidArgument})) return 0;
  TROUPE_CHECK(spec->parameter_count() > 0, "a model has parameters");
  for (const RopeSpec& rope : spec->ropes)
    TROUPE_CHECK(rope_frequencies(rope).size() == static_cast<std::size_t>(rope.width / 2), "a frequency for each pair");
  const auto written = config_json(*spec);
  const auto again = spec_from_config(written, "again");
  TROUPE_CHECK(again, "what was written reads: " + again.error().to_string());
  TROUPE_CHECK(config_json(*again) == written, "and is the same");
  return 0;
}
