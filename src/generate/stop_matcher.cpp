#include "generate/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace troupe::generate {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

std::optional<std::size_t> StopMatcher::push(std::string_view piece) {
  if (piece.empty()) return std::nullopt;
  const std::size_t tail = longest_ > 0 ? longest_ - 1 : 0;  // a stop string may begin this far back
  const std::size_t from = text_.size() - std::min(text_.size(), tail);
  text_ += piece;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, text_.find(stop, from));
  return first == std::string::npos ? std::nullopt : std::optional(first);
}

}  // namespace troupe::generate
