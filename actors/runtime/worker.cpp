#include "actors/runtime/worker.h"

#include <caf/all.hpp>
#include <unistd.h>

#include "actors/messages/all.h"
#include "actors/runtime/head_link.h"
#include "actors/runtime/system.h"
#include "base/log.h"

namespace troupe::actors {
namespace {

struct Life {
  std::unique_ptr<WorkerLogic> logic;
  WorkerContext context;
  Status* outcome = nullptr;
  std::uint64_t term = 0; // of the head it belongs to
  bool orphan = false;

  [[nodiscard]] Hello hello(std::optional<PolicyVersion> version) const {
    const WorkerFrame& f = *context.frame;
    return {f.name, f.role, f.incarnation, static_cast<std::int32_t>(::getpid()), term, version.has_value(), version.value_or(PolicyVersion{})};
  }
};

caf::behavior worker_behavior(caf::event_based_actor* self, const std::shared_ptr<Life>& life) {
  const auto end = [self, life](Status outcome) {
    *life->outcome = std::move(outcome);
    life->logic.reset(); // joins its threads before the actor is gone
    self->quit();
  };
  caf::delayed_anon_send(caf::actor{self}, life->context.heartbeat, Beat{});
  caf::message_handler common{
      [self, life](const Beat&) {
        caf::anon_send(life->context.head, Alive{life->context.frame->name, life->context.frame->incarnation});
        caf::delayed_anon_send(caf::actor{self}, life->context.heartbeat, Beat{});
      },
      [self, life](const HeadLost&) {
        log_warning("the head is gone; waiting for the next one");
        life->orphan = true;
        caf::delayed_anon_send(caf::actor{self}, std::chrono::milliseconds(life->context.frame->lease_ms), LeaseOver{life->term});
      },
      [life](const LeaseOver& lease) {
        if (life->orphan && lease.term == life->term) life->logic->orphaned();
      },
      [self, life](const HeadFound& found) {
        life->orphan = false;
        const caf::actor me{self};
        Hello message = life->hello(std::nullopt); // with the term of the head that is gone
        life->term = found.term;
        life->logic->adopted([me, message = std::move(message), head = life->context.head](std::optional<PolicyVersion> version) mutable {
          message.holds = version.has_value();
          message.version = version.value_or(PolicyVersion{});
          caf::anon_send(head, message, me);
        });
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
  TROUPE_TRY(const auto link, HeadLink::open(system, frame));
  const caf::actor head = link->actor();
  Status outcome;
  caf::scoped_actor waiter{system.caf()};
  const caf::actor worker = waiter->spawn([&](caf::event_based_actor* self) -> caf::behavior {
    auto life = std::make_shared<Life>();
    life->context = {self, head, &frame, options.heartbeat, &progress};
    life->outcome = &outcome;
    life->term = frame.term;
    auto logic = make(life->context);
    if (!logic) {
      outcome = tl::unexpected(logic.error());
      caf::anon_send(head, WorkerFailed{frame.name, frame.incarnation, logic.error()});
      return {};
    }
    life->logic = std::move(*logic);
    caf::anon_send(head, life->hello(std::nullopt), caf::actor{self});
    life->logic->joined();
    return worker_behavior(self, life);
  });
  link->set_owner(worker);
  waiter->wait_for(worker);
  return outcome;
}

} // namespace troupe::actors
