/// @file
/// The one way this code base reports failure that a caller can act on.
///
/// A `Result<T>` is a value or an `Error`. Programmer mistakes are not errors: they
/// stop the process through TROUPE_CHECK, in every build type. Nothing in this project
/// throws across a component boundary; third-party exceptions are caught where the
/// third-party call is made and turned into an `Error` there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace troupe {

/// Why an operation failed. Sent between processes: append new values, never renumber.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument = 1,   ///< The caller broke a documented precondition.
  kInvalidConfig = 2,     ///< The TOML is wrong; `Error::where` is "file:line:column".
  kNotFound = 3,          ///< A file, tensor, model or actor name is unknown.
  kCorrupt = 4,           ///< Bytes read back fail their checksum or their schema.
  kUnavailable = 5,       ///< A peer, device or disk is gone; a retry may succeed.
  kTimeout = 6,           ///< The deadline passed; the operation may still take effect.
  kResourceExhausted = 7, ///< A bounded queue, a KV cache or device memory is full.
  kCancelled = 8,         ///< The supervisor asked for the work to stop.
  kFenced = 9,            ///< The term or epoch of the request is older than the receiver's.
  kDraining = 10,         ///< The receiver is leaving and takes no new work.
  kAlreadyExists = 11,    ///< A file, folder or name that must be new is there already.
  kInternal = 12,         ///< A library threw something that no caller can act on.
};

/// A failure, in words a user can act on.
struct Error {
  ErrorCode code;
  std::string message; ///< What failed, with the offending values. One sentence, no newline.
  std::string where;   ///< "file:line:column" of the user's input, or empty.

  /// Returns "where: message", or just "message" when there is no place to point at.
  [[nodiscard]] std::string to_string() const;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

/// Builds the error alternative of any Result.
[[nodiscard]] inline auto fail(ErrorCode code, std::string message, std::string where = {}) {
  return tl::unexpected(Error{code, std::move(message), std::move(where)});
}

/// The name of a code as it is printed, e.g. "kTimeout" -> "timeout".
[[nodiscard]] std::string_view to_string(ErrorCode code);

} // namespace troupe

#define TROUPE_CONCAT_(a, b) a##b
#define TROUPE_CONCAT(a, b) TROUPE_CONCAT_(a, b)

/// `TROUPE_TRY(auto x, f());` unwraps a Result or returns its error from the enclosing function.
#define TROUPE_TRY(declaration, ...)                                                          \
  auto TROUPE_CONCAT(troupe_try_, __LINE__) = (__VA_ARGS__);                                  \
  if (!TROUPE_CONCAT(troupe_try_, __LINE__))                                                  \
    return ::tl::unexpected(std::move(TROUPE_CONCAT(troupe_try_, __LINE__)).error());         \
  declaration = std::move(*TROUPE_CONCAT(troupe_try_, __LINE__))

/// `TROUPE_TRY_STATUS(f());` returns the error of a Status from the enclosing function.
#define TROUPE_TRY_STATUS(...)                                                                \
  do {                                                                                        \
    if (auto troupe_status = (__VA_ARGS__); !troupe_status)                                   \
      return ::tl::unexpected(std::move(troupe_status).error());                              \
  } while (false)
