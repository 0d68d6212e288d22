#include "actors/supervisor/supervisor.h"

#include <caf/all.hpp>
#include <signal.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "actors/runtime/head_link.h"
#include "actors/runtime/network.h"
#include "actors/runtime/process.h"
#include "actors/runtime/signals.h"
#include "actors/runtime/system.h"
#include "actors/supervisor/control_log.h"
#include "actors/supervisor/control_server.h"
#include "actors/supervisor/head_internal.h"
#include "actors/supervisor/run_folder.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "checkpoint/repository.h"

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;

std::string new_run_id(const SupervisorOptions& options) {
  const auto now = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  return hex64(mix64(mix64(now, static_cast<std::uint64_t>(::getpid())), hash64(options.folder.string())));
}

struct CommitStart {
  protocol::RunPosition position;
  protocol::LedgerSnapshot ledger;
};

Result<CommitStart> start_of(const checkpoint::Loaded& commit) {
  const auto damaged = [&](const std::string& why) { return fail(ErrorCode::kCorrupt, commit.folder().string() + ": the commit record is damaged: " + why); };
  const checkpoint::Record& record = commit.record();
  const auto where = record.extra.find("position");
  const std::string* text = record.blob("ledger");
  if (where == record.extra.end()) return damaged("it says no position");
  if (text == nullptr) return damaged("it holds no ledger");
  const auto position = protocol::position_from_json(*where);
  if (!position) return damaged(position.error().message);
  const auto document = parse_json(*text, "the ledger");
  if (!document) return damaged(document.error().to_string());
  auto ledger = protocol::ledger_from_json(*document);
  if (!ledger) return damaged(ledger.error().message);
  return CommitStart{*position, *std::move(ledger)};
}

bool take_as_warm(HeadStart& start, CommitStart found) {
  if (!protocol::may_return_to(*start.warm, found.position.version, found.ledger)) return false;
  start.warm_commit = found.position;
  start.warm_ledger = std::move(found.ledger);
  return true;
}

// An older commit that the living run may be taken back to.
Status find_warm_commit(const checkpoint::Repository& repository, const std::vector<checkpoint::CommitName>& commits, HeadStart& start) {
  for (const checkpoint::CommitName& commit : commits) {
    const auto loaded = repository.load(commit.folder);
    if (!loaded) continue; // passed over above
    TROUPE_TRY(auto found, start_of(*loaded));
    if (take_as_warm(start, std::move(found))) return {};
  }
  return {};
}

// Where a resumed run goes on: the newest commit whose bytes are right, and the control log.
Status find_start(const SupervisorOptions& options, const protocol::control::State& control, HeadStart& start) {
  start.term = control.term + 1;
  start.wanted = control.wanted;
  if (!options.resume) return {};
  if (control.agent && process_start_ticks(control.agent->pid) == control.agent->start_ticks) {
    if (!control.ended) start.warm = control;
    else ::kill(control.agent->pid, SIGKILL); // the run had ended, and it had not noticed
  }
  const checkpoint::Repository repository(options.folder / "checkpoints");
  if (!start.warm) TROUPE_TRY_STATUS(repository.sweep()); // else a writer may be at work
  TROUPE_TRY(const auto newest, repository.newest_valid());
  for (const auto& skipped : newest.skipped) log_warning("passing over " + skipped.folder.string() + ": " + skipped.reason);
  TROUPE_TRY(const auto commits, repository.list());
  for (const auto& commit : commits) start.commits.push_back(commit.version);
  start.epoch = control.epoch + 1;
  if (!newest.loaded) return {}; // nothing was committed yet: from the start, in a new epoch
  TROUPE_TRY(auto begin, start_of(*newest.loaded));
  start.position = begin.position;
  start.ledger = std::move(begin.ledger);
  start.epoch = std::max(start.epoch, newest.loaded->record().version.epoch + 1);
  if (!start.warm || take_as_warm(start, {start.position, start.ledger})) return {};
  return find_warm_commit(repository, commits, start);
}

Result<pid_t> start_agent(ProcessKeeper& keeper, const WorkerFrame& base, const FileDescriptor& self_exe) {
  WorkerFrame frame = base;
  frame.name = frame.node = "node1";
  frame.role = "node";
  TROUPE_TRY(const FileDescriptor file, frame_file(encode_frame(frame)));
  ProcessSpec spec;
  spec.executable = self_exe.get();
  spec.argv = {"troupe", "node"};
  spec.descriptors = {{file.get(), kFrameDescriptor}};
  spec.output = fs::path(base.run_folder) / "logs" / "node1.log";
  spec.outlives = true; // a supervisor that is killed is replaced, and finds it
  return keeper.start(std::move(spec));
}

// An agent that was told to end does so, and its workers with it; what is left is killed.
void see_off(pid_t agent) {
  const std::uint64_t start_ticks = process_start_ticks(agent);
  if (start_ticks == 0) return; // it has ended
  for (int i = 0; i < 300 && process_start_ticks(agent) == start_ticks; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (process_start_ticks(agent) == start_ticks) ::kill(agent, SIGKILL);
}

// Where other machines join, and how: printed for whoever starts them.
Status listen(const SupervisorOptions& options, System& system, const caf::actor& head, Observer& observer) {
  TROUPE_TRY(const Endpoint at, parse_endpoint(options.listen));
  TROUPE_TRY(const std::uint16_t port, system.publish(head, at.host, at.port));
  const auto file = join_file(options.folder / "credentials");
  observer.say("troupe: other machines join with this line; copy the credential to them first, and keep it secret:\n    troupe join " +
               to_string(Endpoint{at.host, port}) + " --credential " + file.string());
  return {};
}

Result<HeadOutcome> host(const SupervisorOptions& options, HeadStart start, WorkerFrame frame, Observer& observer, ControlLog& log) {
  SystemOptions system_options;
  system_options.credential = frame.credential;
  system_options.heartbeat = options.heartbeat;
  system_options.timeout = options.membership.dead_after;
  System system(system_options);
  TROUPE_TRY(const auto self_exe, open_executable("/proc/self/exe"));
  caf::actor ended_to; // set before the first agent is started
  ProcessKeeper keeper([&](pid_t pid, ExitStatus status) {
    caf::anon_send(ended_to, AgentEnded{pid, to_string(status) + "; log: " + frame.run_folder + "/logs/node1.log"});
  });
  LocalAgent agent{[&] { return start_agent(keeper, frame, self_exe); }, {}};
  if (start.warm) agent.pid = start.warm->agent->pid;
  HeadOutcome outcome;
  // The head is told its own port through the frame, and the port is known only once it is published: it begins when both are there.
  std::promise<std::uint16_t> port;
  auto port_known = port.get_future().share();
  caf::scoped_actor waiter{system.caf()};
  const caf::actor head = waiter->spawn([&, port_known](caf::event_based_actor* self) -> caf::behavior {
    return {[&, self](const Tick&) {
      WorkerFrame full = frame;
      full.head_port = port_known.get();
      auto state = std::make_shared<Head>(self, options, start, full, observer, log, agent, outcome);
      self->attach_functor([state] {});
      self->become(state->make_behavior());
    }};
  });
  TROUPE_TRY(const std::uint16_t bound, system.publish(head, "127.0.0.1", 0));
  port.set_value(bound);
  frame.head_port = bound;
  ended_to = head;
  TROUPE_TRY_STATUS(write_head_point(options.folder, {frame.term, frame.head_host, bound}));
  if (!options.listen.empty()) TROUPE_TRY_STATUS(listen(options, system, head, observer));
  caf::anon_send(head, Tick{0});

  TROUPE_TRY(const auto folder, socket_folder(frame.run_id));
  const ControlPoint point{frame.run_id, options.run_name, options.folder, folder / "control.sock", ::getpid(), process_start_ticks(::getpid())};
  TROUPE_TRY(auto server, ControlServer::start(point.socket, [&](const std::string& line) {
    caf::scoped_actor client{system.caf()};
    std::string answer = R"({"ok":false,"error":"the head did not answer"})";
    client->request(head, std::chrono::seconds(5), ControlRequest{line}).receive([&](const ControlReply& reply) { answer = reply.line; }, [](const caf::error&) {});
    return answer;
  }));
  TROUPE_TRY_STATUS(write_control_point(point));
  const SignalThread signals(head);

  waiter->wait_for(head);
  if (const pid_t last = agent.pid; last > 0) see_off(last);
  server.reset();
  std::error_code ec;
  fs::remove_all(folder, ec);
  fs::remove(options.folder / "control.json", ec);
  fs::remove(options.folder / "head.json", ec);
  return outcome;
}

} // namespace

Result<HeadOutcome> run_supervisor(const SupervisorOptions& options) {
  block_signals();
  TROUPE_TRY(const auto folder, options.resume ? RunFolder::reopen(options.folder) : RunFolder::create(options.folder, options.run_json));
  if (options.prepare) TROUPE_TRY_STATUS(options.prepare(options.folder));
  TROUPE_TRY(auto opened, ControlLog::open(options.folder / "control.log"));
  HeadStart start;
  TROUPE_TRY_STATUS(find_start(options, opened.state, start));
  TROUPE_TRY_STATUS(opened.log->append_or_fail(protocol::control::Term{start.term}));
  WorkerFrame frame;
  frame.run_id = new_run_id(options);
  frame.run_folder = options.folder.string();
  frame.term = start.term;
  frame.epoch = start.epoch;
  frame.head_host = "127.0.0.1";
  frame.lease_ms = options.lease / std::chrono::milliseconds(1);
  frame.head_wait_ms = options.head_wait / std::chrono::milliseconds(1);
  frame.experiment = options.experiment;
  if (!options.listen.empty()) {
    TROUPE_TRY(const Endpoint at, parse_endpoint(options.listen));
    TROUPE_TRY(frame.bulk_device, interface_of(at.host));
  }
  TROUPE_TRY(frame.credential, open_credential(options.folder / "credentials", frame.run_id));
  TROUPE_TRY(auto observer, Observer::open(options));
  return host(options, std::move(start), std::move(frame), *observer, *opened.log);
}

} // namespace troupe::actors
