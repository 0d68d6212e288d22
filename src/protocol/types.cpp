#include "protocol/types.h"

namespace troupe::protocol {

std::string_view to_string(Role role) {
  switch (role) {
    case Role::kRank: return "rank";
    case Role::kRollout: return "rollout";
    case Role::kEnvironment: return "environment";
    case Role::kCheckpointWriter: return "checkpoint_writer";
  }
  return "unknown";
}

Result<Role> parse_role(std::string_view text) {
  for (const Role role : {Role::kRank, Role::kRollout, Role::kEnvironment, Role::kCheckpointWriter}) {
    if (text == to_string(role)) return role;
  }
  return fail(ErrorCode::kInvalidArgument, "there is no role '" + std::string(text) +
                                               "'; roles are rank, rollout, environment and checkpoint_writer");
}

std::string worker_name(WorkerId worker) {
  return std::string(to_string(worker.role)) + "/" + std::to_string(worker.index);
}

std::string to_string(WorkerId worker) { return worker_name(worker) + "." + std::to_string(worker.incarnation); }

std::string to_string(NodeId node) { return "node" + std::to_string(node.number); }

std::string_view to_string(RunExit exit) {
  switch (exit) {
    case RunExit::kDone: return "done";
    case RunExit::kStopped: return "stopped";
    case RunExit::kFailed: return "failed";
  }
  return "unknown";
}

} // namespace troupe::protocol
