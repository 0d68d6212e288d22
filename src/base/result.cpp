#include "base/result.h"

namespace troupe {

std::string Error::to_string() const { return where.empty() ? message : where + ": " + message; }

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kInvalidConfig: return "invalid config";
    case ErrorCode::kNotFound: return "not found";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kResourceExhausted: return "resource exhausted";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kFenced: return "fenced";
    case ErrorCode::kDraining: return "draining";
    case ErrorCode::kAlreadyExists: return "already exists";
    case ErrorCode::kInternal: return "internal";
  }
  return "unknown";
}

} // namespace troupe
