// The write-ahead log of control state. Inputs are the records' JSON, one a line, to which the right checksums are put here; an input that
// begins with '=' is the file itself.
#include "actors/supervisor/control_log.h"

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "fuzz/support.h"

using namespace troupe;

namespace {

std::string with_checksums(std::string_view text) {
  std::string log;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    log += hex64(hash64(text.substr(0, end))) + " " + std::string(text.substr(0, end)) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return log;
}

void check_fewest_records(const protocol::control::State& state) {
  protocol::control::State folded;
  for (const auto& record : protocol::records_of(state)) {
    const auto again = protocol::record_from_json(protocol::to_json(record));
    TROUPE_CHECK(again, "a record that was written reads: " + again.error().to_string());
    TROUPE_CHECK(protocol::to_json(*again) == protocol::to_json(record), "and is the same");
    TROUPE_CHECK(protocol::apply(folded, *again), "and folds in");
  }
  TROUPE_CHECK(folded == state, "the fewest records say the same");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryBound bound(size, 64 << 20, 400);  // an order may be a million prompts ahead of the ledger
  const std::string_view text = fuzz::text_of(data, size);
  const fuzz::MemoryFile file(text.starts_with('=') ? std::string(text.substr(1)) : with_checksums(text));
  auto opened = actors::ControlLog::open(file.path());
  if (!fuzz::is_good(opened, {ErrorCode::kCorrupt})) return 0;
  check_fewest_records(opened->state);
  for (const std::uint32_t epoch : {opened->state.epoch, std::uint32_t{0}})
    for (const std::uint64_t step : {opened->state.position.version.step, opened->state.position.version.step + 1})
      (void)protocol::warm_start(opened->state, {epoch, step});
  // What was opened goes on, and reads again with what was appended; a record of the past is not taken.
  if (opened->state.term == UINT64_MAX) return 0;
  const std::uint64_t term = opened->state.term + 1;
  opened->log->append(protocol::control::Term{term});
  opened->log->append(protocol::control::Term{1});
  const auto again = actors::ControlLog::open(file.path());
  TROUPE_CHECK(again, "the log that was appended to reads: " + again.error().to_string());
  TROUPE_CHECK(again->state.term == term && again->state.ledger == opened->state.ledger, "nothing is lost");
  return 0;
}
