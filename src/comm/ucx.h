/// @file
/// UCX's functions, from a library that is opened at the first transfer: loading it patches the process's memory functions
/// and takes 0.4 s, which no command line should pay. Internal to comm/.
#pragma once

#include <ucp/api/ucp.h>

#include "base/result.h"

#define TROUPE_UCX_FUNCTIONS(F)                                                                                          \
  F(ucp_cleanup) F(ucp_config_modify) F(ucp_config_read) F(ucp_config_release) F(ucp_ep_close_nbx) F(ucp_ep_create)      \
  F(ucp_ep_flush_nbx) F(ucp_ep_rkey_unpack) F(ucp_get_nbx) F(ucp_init_version) F(ucp_mem_map) F(ucp_mem_unmap)           \
  F(ucp_put_nbx) F(ucp_request_check_status) F(ucp_request_free) F(ucp_rkey_buffer_release) F(ucp_rkey_destroy)          \
  F(ucp_rkey_pack) F(ucp_worker_arm) F(ucp_worker_create) F(ucp_worker_destroy) F(ucp_worker_get_address)                \
  F(ucp_worker_get_efd) F(ucp_worker_progress) F(ucp_worker_release_address) F(ucs_status_string)

namespace troupe::comm::internal {

struct Ucx {
#define TROUPE_UCX_POINTER(name) decltype(&::name) name = nullptr;
  TROUPE_UCX_FUNCTIONS(TROUPE_UCX_POINTER)
#undef TROUPE_UCX_POINTER
};

/// Opens libucp once per process; later calls return the same result. Errors: kUnavailable with the loader's text.
[[nodiscard]] const Result<Ucx>& open_ucx();

/// After open_ucx() has succeeded.
[[nodiscard]] inline const Ucx& ucx() { return *open_ucx(); }

} // namespace troupe::comm::internal
