/// @file
/// A machine that joins a run: `troupe join`.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "actors/runtime/frame.h"
#include "base/endpoint.h"
#include "base/result.h"

namespace troupe::actors {

struct JoinOptions {
  Endpoint head;
  std::filesystem::path credential;
  std::filesystem::path folder; ///< Where the node's own folder (logs, tokenizer) is made: `<folder>/<run>.<node>`.
  /// Makes in the node's folder what workers need to find there, and gives the digest of its tokenizer.json.
  std::function<Result<std::string>(const WorkerFrame& frame)> prepare;
  std::function<void(const std::string&)> say; ///< One line for the user.
};

/// Joins the run of that head and serves it until the run ends or the machine leaves. When the head gave the machine up (a cut link) it joins
/// anew, as another node. Blocking. Errors: those of read_credential and try_credential; kUnavailable when the head is of another build,
/// refuses, or stays away; kInvalidArgument when model or tokenizer here are not the run's; kCancelled when interrupted twice.
[[nodiscard]] Status run_join(const JoinOptions& options);

} // namespace troupe::actors
