#include "actors/runtime/worker.h"

#include <caf/all.hpp>
#include <unistd.h>

#include "actors/messages/all.h"
#include "actors/runtime/system.h"
#include "base/log.h"

namespace troupe::actors {
namespace {

/// Posted by WorkerContext::fail to the worker's own actor.
struct Life {
  std::unique_ptr<WorkerLogic> logic;
  WorkerContext context;
  Status* outcome = nullptr;
};

caf::behavior worker_behavior(caf::event_based_actor* self, const std::shared_ptr<Life>& life) {
  const auto end = [self, life](Status outcome) {
    *life->outcome = std::move(outcome);
    life->logic.reset(); // joins its threads before the actor is gone
    self->quit();
  };
  self->monitor(life->context.head);
  self->set_down_handler([end](const caf::down_msg&) { end(fail(ErrorCode::kUnavailable, "the head is gone")); });
  caf::delayed_anon_send(caf::actor{self}, life->context.heartbeat, Beat{});
  caf::message_handler common{
      [self, life](const Beat&) {
        caf::anon_send(life->context.head, Alive{life->context.frame->name, life->context.frame->incarnation});
        caf::delayed_anon_send(caf::actor{self}, life->context.heartbeat, Beat{});
      },
      [end](const StopWorker& order) {
        log_info("stopping: " + order.reason);
        end({});
      },
      [end](const FencedOff& order) { end(fail(ErrorCode::kFenced, order.reason)); },
      [end](const WorkerFailed& failed) { end(tl::unexpected(failed.error)); },
  };
  return life->logic->handlers().or_else(common);
}

} // namespace

void WorkerContext::fail(const Error& error) const {
  log_error(error.to_string());
  const WorkerFailed message{frame->name, frame->incarnation, error};
  const caf::actor me = self;
  caf::anon_send(head, message);
  caf::anon_send(me, message); // ends the worker once the handler that runs now is done
}

Status run_worker(const WorkerFrame& frame, const MakeLogic& make) {
  set_log_name(frame.name);
  TROUPE_TRY(WorkProgress progress, WorkProgress::map(kProgressDescriptor));
  ::close(kProgressDescriptor);
  SystemOptions options;
  options.credential = frame.credential;
  System system(options);
  TROUPE_TRY(const caf::actor head, system.connect(frame.head_host, frame.head_port));
  Status outcome;
  caf::scoped_actor waiter{system.caf()};
  const caf::actor worker = waiter->spawn([&](caf::event_based_actor* self) -> caf::behavior {
    auto life = std::make_shared<Life>();
    life->context = {self, head, &frame, options.heartbeat, &progress};
    life->outcome = &outcome;
    auto logic = make(life->context);
    if (!logic) {
      outcome = tl::unexpected(logic.error());
      caf::anon_send(head, WorkerFailed{frame.name, frame.incarnation, logic.error()});
      return {};
    }
    life->logic = std::move(*logic);
    caf::anon_send(head, Hello{frame.name, frame.role, frame.incarnation, static_cast<std::int32_t>(::getpid()), frame.term}, caf::actor{self});
    life->logic->joined();
    return worker_behavior(self, life);
  });
  waiter->wait_for(worker);
  return outcome;
}

} // namespace troupe::actors
