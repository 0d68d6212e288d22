/// @file
/// Who may talk: every run has a certificate authority of its own; supervisor, agents and workers prove that they belong to it (mutual TLS).
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace troupe::actors {

/// Paths of PEM files as CAF's TLS module wants them.
struct Credential {
  std::string certificate;
  std::string key;
  std::string authority;
};

/// Makes a run's authority and one node credential below `folder` (created 0700, files 0600), replacing older ones. The authority's key is
/// not kept: nobody can sign another node afterwards. ECDSA P-256, valid for 10 years: a run has no need to renew.
/// Errors: as system_error; kInternal with OpenSSL's text.
[[nodiscard]] Result<Credential> make_credential(const std::filesystem::path& folder, const std::string& run_id);

/// The credential that the folder holds, or a new one. Errors: those of make_credential.
[[nodiscard]] Result<Credential> open_credential(const std::filesystem::path& folder, const std::string& run_id);

} // namespace troupe::actors
