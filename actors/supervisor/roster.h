/// @file
/// The cast: which process plays which role. The one place to add a role.
#pragma once

#include <cstdint>
#include <span>

#include "actors/supervisor/options.h"
#include "protocol/types.h"

namespace troupe::actors {

struct RoleRow {
  protocol::Role role;
  bool torch;    ///< Runs in `troupe-worker`, else in `troupe`.
  bool weights;  ///< Gets a memory file for weight slots.
  int (*threads)(const SupervisorOptions&);
  std::uint32_t (*count)(const SupervisorOptions&); ///< Wanted at the start.
};

[[nodiscard]] std::span<const RoleRow> roster();
[[nodiscard]] const RoleRow& role_row(protocol::Role role);

} // namespace troupe::actors
