#include "actors/supervisor/roster.h"

#include "base/check.h"

namespace troupe::actors {
namespace {

using protocol::Role;

constexpr RoleRow kRoster[] = {
    {Role::kRank, true, true, [](const SupervisorOptions& o) { return o.rank_threads; }, [](const SupervisorOptions& o) { return o.ranks; }},
    {Role::kCheckpointWriter, false, false, [](const SupervisorOptions&) { return 1; }, [](const SupervisorOptions&) { return 1u; }},
    {Role::kEnvironment, false, false, [](const SupervisorOptions&) { return 1; }, [](const SupervisorOptions& o) { return o.environment_runners; }},
    {Role::kRollout, true, false, [](const SupervisorOptions& o) { return o.rollout_threads; }, [](const SupervisorOptions& o) { return o.rollout_workers; }},
};

} // namespace

std::span<const RoleRow> roster() { return kRoster; }

const RoleRow& role_row(Role role) {
  for (const RoleRow& row : kRoster)
    if (row.role == role) return row;
  check_failed("role is in the roster", "every role has a row");
}

} // namespace troupe::actors
