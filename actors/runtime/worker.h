/// @file
/// What every worker process has in common: it reads its frame, joins the head, serves until told to stop, and ends when the head is gone.
#pragma once

#include <caf/actor.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/message_handler.hpp>

#include <functional>
#include <memory>

#include "actors/runtime/frame.h"
#include "actors/runtime/progress.h"
#include "base/result.h"
#include "base/units.h"

namespace troupe::actors {

/// What the logic of a worker is given. Valid as long as the logic lives.
struct WorkerContext {
  caf::event_based_actor* self = nullptr;
  caf::actor head;
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
};

using MakeLogic = std::function<Result<std::unique_ptr<WorkerLogic>>(const WorkerContext&)>;

/// The life of a worker process. Blocking. The logic is made before the head is told of the worker, so that a worker that cannot work
/// never joins. Errors: those of `make`; kUnavailable when the head is gone; kFenced when the head refuses the worker.
[[nodiscard]] Status run_worker(const WorkerFrame& frame, const MakeLogic& make);

} // namespace troupe::actors
