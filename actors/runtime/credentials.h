/// @file
/// Who may talk: every run has a certificate authority of its own; supervisor, agents and workers prove that they belong to it (mutual TLS).
#pragma once

#include <filesystem>
#include <string>

#include "actors/runtime/network.h"
#include "base/result.h"

namespace troupe::actors {

/// Paths of PEM files as CAF's TLS module wants them.
struct Credential {
  std::string certificate;
  std::string key;
  std::string authority;
};

inline constexpr long kCredentialSeconds = 10L * 365 * 24 * 3600; ///< How long a credential is valid: a run has no need to renew.

/// Makes a run's authority and one node credential below `folder` (created 0700, files 0600), replacing older ones. The authority's key is
/// not kept: nobody can sign another node afterwards. ECDSA P-256. `join.pem` beside them holds all three in one file, for `troupe join`.
/// Errors: as system_error; kInternal with OpenSSL's text.
[[nodiscard]] Result<Credential> make_credential(const std::filesystem::path& folder, const std::string& run_id,
                                                 long valid_seconds = kCredentialSeconds);

/// The file that another machine needs, in that folder.
[[nodiscard]] std::filesystem::path join_file(const std::filesystem::path& folder);

/// The credential in one file of PEM blocks. Errors, each a sentence of its own: kNotFound without the file; kInvalidArgument when others
/// may read it, when it holds no credential, or when certificate, key and authority do not belong together; kUnavailable when it has expired.
[[nodiscard]] Result<Credential> read_credential(const std::filesystem::path& file);

/// Shakes hands with a head as CAF will, to say what CAF cannot: kUnavailable when nobody listens, when the head shows the certificate of
/// another run, or when it refuses ours; kTimeout.
[[nodiscard]] Status try_credential(const Credential& credential, const Endpoint& head, Duration deadline);

/// The credential that the folder holds, or a new one. Errors: those of make_credential.
[[nodiscard]] Result<Credential> open_credential(const std::filesystem::path& folder, const std::string& run_id);

} // namespace troupe::actors
