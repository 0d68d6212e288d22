// The metadata of a checkpoint: commit.json, into which the right digest is put here (an input that begins with '=' is the file itself); and
// the parts of it that travel in messages.
#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/commit_file.h"
#include "fuzz/support.h"
#include "protocol/ledger.h"

using namespace troupe;
using namespace troupe::checkpoint;

namespace {

constexpr std::initializer_list<ErrorCode> kRefusals = {ErrorCode::kCorrupt};

std::string dump(const nlohmann::json& json) { return json.dump(1, ' ', true) + "\n"; }

std::string with_digest(nlohmann::json body) {
  if (!body.is_object()) return dump(body);
  body.erase("digest");
  body["digest"] = hex64(hash64(dump(body)));
  return dump(body);
}

void check_parts(const nlohmann::json& json) {
  if (const auto record = record_from_json(json); fuzz::is_good(record, kRefusals))
    TROUPE_CHECK(record_from_json(to_json(*record)).has_value(), "a record that was written reads");
  if (const auto layout = layout_from_json(json); fuzz::is_good(layout, kRefusals)) {
    const auto again = layout_from_json(to_json(*layout));
    TROUPE_CHECK(again && again->tensors == layout->tensors && again->digest() == layout->digest(), "a layout is the same when it is read again");
  }
  if (const auto ledger = protocol::ledger_from_json(json); fuzz::is_good(ledger, kRefusals))
    TROUPE_CHECK(protocol::ledger_from_json(protocol::to_json(*ledger)) == *ledger, "a ledger is the same when it is read again");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryBound bound(size, 1 << 20, 1000);
  std::string text(fuzz::text_of(data, size));
  if (text.starts_with('=')) {
    text.erase(0, 1);
  } else if (const auto json = parse_json(text, "commit.json"); fuzz::is_good(json, kRefusals)) {
    check_parts(*json);
    text = with_digest(*json);
  }
  const auto commit = decode(text);
  if (!fuzz::is_good(commit, kRefusals)) return 0;
  const auto again = decode(encode(*commit));
  TROUPE_CHECK(again, "what was read is written: " + again.error().to_string());
  TROUPE_CHECK(same_state(*again, *commit) && encode(*again) == encode(*commit), "and is the same");
  TROUPE_CHECK(safetensors_header(commit->layout).size() % kAlignment == 0, "a header of whole blocks");
  return 0;
}
