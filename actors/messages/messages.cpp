#include "actors/messages/all.h"

#include <algorithm>

// Compiles every message's inspection once, so that a mistake shows here and not in five actors.

namespace troupe::actors {

PolicyVersion oldest_of(const SamplePrefix& prefix) {
  PolicyVersion oldest{UINT32_MAX, UINT64_MAX};
  if (!prefix.turns.ids.empty()) oldest = prefix.turns.oldest;
  if (!prefix.ids.empty()) oldest = std::min(oldest, prefix.kv_oldest);
  for (const PolicyVersion version : prefix.versions) oldest = std::min(oldest, version);
  return oldest;
}

} // namespace troupe::actors
