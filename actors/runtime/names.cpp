#include "actors/runtime/names.h"

#include <algorithm>
#include <charconv>

namespace troupe::actors {

Result<protocol::WorkerId> worker_id(std::string_view name, std::uint32_t incarnation) {
  const auto slash = name.rfind('/');
  const auto bad = [&] { return fail(ErrorCode::kInvalidArgument, "\"" + std::string(name) + "\" is not a worker's name such as rollout/3"); };
  if (slash == std::string_view::npos) return bad();
  TROUPE_TRY(const auto role, protocol::parse_role(name.substr(0, slash)));
  std::uint32_t index = 0;
  const auto [end, ec] = std::from_chars(name.data() + slash + 1, name.data() + name.size(), index);
  if (ec != std::errc{} || end != name.data() + name.size()) return bad();
  return protocol::WorkerId{role, index, incarnation};
}

std::string log_name(const protocol::WorkerId& worker) {
  std::string name = protocol::worker_name(worker);
  std::replace(name.begin(), name.end(), '/', '-');
  return name + "." + std::to_string(worker.incarnation) + ".log";
}

} // namespace troupe::actors
