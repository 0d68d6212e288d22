#include "actors/supervisor/head.h"

#include <caf/all.hpp>

#include "actors/runtime/names.h"
#include "actors/runtime/system.h"
#include "actors/supervisor/control_log.h"
#include "actors/supervisor/head_internal.h"
#include "base/log.h"

namespace troupe::actors {
namespace {

namespace pm = protocol::membership;

// Deadlines that a loaded sanitizer build would miss are stretched by TROUPE_TIME_SCALE.
protocol::MembershipOptions scaled(protocol::MembershipOptions options) {
  const double scale = time_scale();
  for (Duration* d : {&options.suspect_after, &options.dead_after, &options.work_silence, &options.join_deadline, &options.drain_deadline, &options.drain_grace})
    *d = from_seconds(seconds(*d) * scale);
  return options;
}

std::vector<protocol::StageSpec> specs(const SupervisorOptions& options) {
  std::vector<protocol::StageSpec> out;
  for (const HeadStage& stage : options.stages) out.push_back(stage.spec);
  return out;
}

} // namespace

Head::Head(caf::event_based_actor* self, const SupervisorOptions& options, HeadStart start, WorkerFrame frame, Observer& observer, ControlLog& log,
           LocalAgent& agent, HeadOutcome& outcome)
    : self_(self),
      options_(options),
      start_(std::move(start)),
      frame_(std::move(frame)),
      observer_(observer),
      log_(log),
      agent_(agent),
      outcome_(outcome),
      samples_per_step_(options.samples_per_step),
      agent_restarts_(options.membership.restart),
      membership_(scaled(options.membership)),
      // Numbers of a later term are higher. Whoever is dead is known to be within the time-out of heartbeats, and killed.
      mesh_(options.ranks, start_.term << 32, scaled(options.membership).dead_after + std::chrono::seconds(1)),
      run_(options.run, specs(options)),
      rollout_(options.rollout, start_.ledger),
      commit_(options.commit, start_.epoch, 1),
      router_(
          [this](EnvironmentReplies replies) {
            const auto it = workers_.find(replies.worker);
            if (it != workers_.end() && it->second.id.incarnation == replies.incarnation) caf::anon_send(it->second.actor, std::move(replies));
          },
          [this](const std::string& runner, EnvironmentCalls calls) {
            if (const auto it = workers_.find(runner); it != workers_.end()) caf::anon_send(it->second.actor, std::move(calls));
          }),
      probe_(options.probe_sequences) {}

caf::behavior Head::make_behavior() {
  self_->set_down_handler([this](const caf::down_msg& message) { link_down(message.source); });
  // A handler that throws is a bug of the head; the run must not hang on it.
  self_->set_exception_handler([this](std::exception_ptr& error) -> caf::error {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      end(protocol::RunExit::kFailed, std::string("the head failed: ") + e.what());
    }
    return caf::make_error(caf::sec::runtime_error);
  });
  begin();
  return worker_handlers().or_else(mesh_handlers()).or_else(rank_handlers()).or_else(rollout_handlers()).or_else(control_handlers());
}

void Head::begin() {
  const auto now = head_now();
  step_began_ = stage_began_ = now;
  for (const HeadStage& stage : options_.stages) lr_.push_back(stage.lr);
  lease_request_ = start_.term << 32; // readers' requests of an earlier head were lower
  commit_event(protocol::checkpoint::Found{start_.commits});
  arm(kSecondTimer, now + std::chrono::seconds(1));
  if (start_.warm) return arm(kAdoptTimer, now + from_seconds(5 * time_scale()));
  begin_cold({});
}

caf::message_handler Head::worker_handlers() {
  return {
      [this](const NodeHello& hello, const caf::actor& agent) { node_joined(hello, agent); },
      [this](const WorkerStarted& m) { pids_[{m.name, m.incarnation}] = m.pid; },
      [this](const WorkerExited& m) {
        const auto id = worker_id(m.name, m.incarnation);
        if (!id) return;
        if (pids_.erase({m.name, m.incarnation}) == 0) member_event(pm::StartFailed{*id, m.how});
        else member_event(pm::Exited{*id, m.how});
      },
      [this](const Hello& hello, const caf::actor& worker) { worker_joined(hello, worker); },
      [this](const Alive& m) { heard(m.name, m.incarnation); },
      [this](const NodeReport& report) { node_report(report); },
      [this](const WorkerLog& log) {
        if (const auto id = worker_id(log.name, log.incarnation)) observer_.log(*id, log.offset, log.text);
      },
      [this](const JoinRun& request) { return admit(request); },
      [this](const AskTerm&) { return TermIs{start_.term}; },
      [this](const LeaveRun& order) { (void)drain_node(order.node); },
      [this](const WorkerFailed& m) {
        if (m.name.starts_with("rank/")) rank_failures_[m.name] = m.error.message;
        observer_.event("worker_failed", m.name, {{"incarnation", m.incarnation}, {"error", m.error.to_string()}});
        observer_.say("troupe: " + m.name + ": " + m.error.to_string());
      },
      [this](const EnvironmentCalls& calls) { router_.ask(calls); },
      [this](EnvironmentReplies& replies) { router_.answered(std::move(replies)); },
  };
}

caf::message_handler Head::rank_handlers() {
  return {
      [this](const StepDone& m) { step_done(m); },
      [this](const WeightsPublished& m) { weights_published(m); },
      [this](const LeaseGranted& m) { lease_granted(m); },
      [this](const StateLayoutIs& m) { layout_is(m); },
      [this](const MemoryReady& m) { memory_ready(m); },
      [this](const StateCopied& m) { state_copied(m); },
      [this](const Committed& m) { committed(m); },
      [this](const Exported& m) { exported(m); },
      [this](const ProbeScored& m) { probed(m); },
  };
}

caf::message_handler Head::rollout_handlers() {
  return {
      [this](const SamplesDone& m) { samples_done(m); },   [this](const SamplesFailed& m) { samples_failed(m); },
      [this](const WorkRefused& m) { work_refused(m); },   [this](const WeightsPulled& m) { weights_pulled(m); },
      [this](const Drained& m) { drained(m); },            [this](const RolloutGauges& m) { gauges(m); },
  };
}

caf::message_handler Head::control_handlers() {
  return {
      [this](const ControlRequest& request) { return ControlReply{answer(request.line)}; },
      [this](const StopRun& stop) {
        observer_.say("troupe: " + stop.reason + (run_.stopping() ? "; ending at once" : "; finishing the step and saving (again to end at once)"));
        observer_.event("stop", "", {{"reason", stop.reason}});
        if (!run_.stopping()) outcome_.preempted = stop.preempted;
        run_event(protocol::run::Stop{});
      },
      [this](const AgentEnded& agent) { agent_gone(agent.pid, agent.how); },
      [this](const Tick& t) { tick(t.timer); },
  };
}

void Head::arm(Timer timer, TimePoint at) {
  caf::delayed_anon_send(caf::actor{self_}, std::max<Duration>(at - head_now(), Duration{0}), Tick{timer});
}

void Head::tick(std::uint64_t timer) {
  switch (timer) {
    case kMembershipTimer: return member_event(protocol::Wake{});
    case kRunTimer: return run_event(protocol::Wake{});
    case kRolloutTimer: return rollout_event(protocol::Wake{});
    case kCommitTimer: return commit_event(protocol::Wake{});
    case kSecondTimer: return every_second();
    case kAdoptTimer: return begun_ ? void() : begin_cold("nobody it left behind answered");
    case kAgentTimer: return start_agent();
    case kMeshTimer: return mesh_event(protocol::Wake{});
    default: return;
  }
}

void Head::every_second() {
  std::vector<pid_t> pids{::getpid()};
  for (const auto& [name, pid] : pids_) pids.push_back(pid);
  observer_.sample_memory(std::move(pids));
  observer_.progress(progress());
  arm(kSecondTimer, head_now() + std::chrono::seconds(1));
}

Head::WorkerEntry* Head::entry(const protocol::WorkerId& id) {
  const auto it = workers_.find(worker_name(id));
  return it != workers_.end() && it->second.id == id ? &it->second : nullptr;
}

Head::WorkerEntry* Head::only(protocol::Role role) {
  for (auto& [name, worker] : workers_)
    if (worker.id.role == role) return &worker;
  return nullptr;
}

void Head::note(const protocol::Note& note) {
  log(note.level, note.text);
  observer_.event("note", "", {{"level", note.level == LogLevel::kError ? "error" : note.level == LogLevel::kWarning ? "warning" : "info"}, {"text", note.text}});
}

void Head::end(protocol::RunExit exit, const std::string& reason) {
  if (std::exchange(ended_, true)) return;
  outcome_.exit = exit;
  outcome_.reason = reason;
  observer_.event("run_ended", "", {{"exit", std::string(to_string(exit))}, {"reason", reason}});
  log_.append(protocol::control::Ended{exit});
  observer_.close(summary());
  begun_ = true;
  for (auto& [name, worker] : workers_) caf::anon_send(worker.actor, StopWorker{"the run has ended"});
  for (auto& [id, node] : nodes_) caf::anon_send(node.agent, StopNode{"the run has ended"});
  self_->quit();
}

} // namespace troupe::actors
