/// @file
/// What every worker process has in common: it reads its frame, joins the head, serves until told to stop, and ends when the head is gone.
#pragma once

#include <caf/actor.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/message_handler.hpp>

#include <functional>
#include <memory>
#include <optional>

#include "actors/runtime/frame.h"
#include "actors/runtime/progress.h"
#include "base/ids.h"
#include "base/result.h"
#include "base/units.h"

namespace troupe::actors {

/// What the logic of a worker is given. Valid as long as the logic lives.
struct WorkerContext {
  caf::event_based_actor* self = nullptr;
  caf::actor head; ///< The way to it: messages are dropped while there is none.
  const WorkerFrame* frame = nullptr;
  Duration heartbeat{};
  WorkProgress* progress = nullptr; ///< For the thread on which the worker computes.

  /// Tells the head and ends the process with exit code 1.
  void fail(const Error& error) const;
};

/// The logic of one worker: lives on the control actor, from the join to the end.
class WorkerLogic {
 public:
  virtual ~WorkerLogic() = default;
  /// The messages it understands, besides the ones that all workers do.
  [[nodiscard]] virtual caf::message_handler handlers() = 0;
  /// Called once after the head was told of this worker.
  virtual void joined() {}
  /// Nobody has spoken for the head for the whole lease: stop at the next edge.
  virtual void orphaned() {}
  /// A head of a later term is there. What the lost one had asked for is void, except training steps that are done or under way. Calls `hello`,
  /// from any thread, with the version of the weights it holds, once that is certain.
  virtual void adopted(std::function<void(std::optional<PolicyVersion>)> hello) { hello(std::nullopt); }
};

using MakeLogic = std::function<Result<std::unique_ptr<WorkerLogic>>(const WorkerContext&)>;

/// The life of a worker process. Blocking. The logic is made before the head is told of the worker, so that a worker that cannot work
/// never joins. Errors: those of `make`; kUnavailable when the head is gone; kFenced when the head refuses the worker.
[[nodiscard]] Status run_worker(const WorkerFrame& frame, const MakeLogic& make);

} // namespace troupe::actors
