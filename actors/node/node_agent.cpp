#include "actors/node/node_agent.h"

#include <caf/all.hpp>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "actors/messages/all.h"
#include "actors/node/log_tail.h"
#include "actors/runtime/head_link.h"
#include "actors/runtime/names.h"
#include "actors/runtime/network.h"
#include "actors/runtime/process.h"
#include "actors/runtime/progress.h"
#include "actors/runtime/signals.h"
#include "actors/runtime/system.h"
#include "base/log.h"

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;

struct Executables {
  FileDescriptor plain; // troupe
  FileDescriptor torch; // troupe-worker
};

Result<Executables> open_executables() {
  const fs::path self = fs::read_symlink("/proc/self/exe");
  TROUPE_TRY(auto plain, open_executable(self));
  TROUPE_TRY(auto torch, open_executable(self.parent_path() / "troupe-worker"));
  return Executables{std::move(plain), std::move(torch)};
}

// The last non-empty line of a log, at most 300 characters: what a person would look at first.
std::string last_line(const fs::path& log) {
  const auto text = read_file(log, std::uint64_t{64} << 20);
  if (!text) return {};
  const auto end = text->find_last_not_of("\n ");
  if (end == std::string::npos) return {};
  const auto begin = text->rfind('\n', end);
  return text->substr(begin == std::string::npos ? 0 : begin + 1, std::min<std::size_t>(300, end - (begin == std::string::npos ? 0 : begin)));
}

struct Child {
  std::string name;
  std::uint32_t incarnation = 0;
  fs::path log;
  WorkProgress progress;
  LogTail tail;
};

constexpr auto kReportEvery = std::chrono::seconds(1);
constexpr std::uint64_t kLogBytesMax = 64 << 10;  // of all workers, a report
constexpr int kListenersEvery = 5; // reports: reading them goes through /proc

class AgentState {
 public:
  static constexpr const char* name = "node_agent";

  AgentState(caf::event_based_actor* self, WorkerFrame frame, Executables executables, caf::actor head, Status* outcome)
      : self_(self), frame_(std::move(frame)), executables_(std::move(executables)), head_(std::move(head)), outcome_(outcome) {
    const caf::actor me = self;
    // Exits are reported by the keeper's thread; the actor's mailbox orders them with everything else.
    keeper_ = std::make_unique<ProcessKeeper>([me](pid_t pid, ExitStatus status) {
      caf::anon_send(me, WorkerExited{"", static_cast<std::uint32_t>(pid), status.code, status.signal, ""});
    });
  }

  caf::behavior make_behavior() {
    say_hello();
    self_->delayed_send(caf::actor{self_}, kReportEvery, Beat{});
    return {
        [this](const StartWorker& order) { start(order); },
        [this](const KillWorker& order) { kill(order); },
        [this](const Beat&) { report(); },
        [this](const WorkerExited& raw) { exited(static_cast<pid_t>(raw.incarnation), {raw.code, raw.signal}); },
        [this](const HeadLost&) {
          log_warning("the head is gone; waiting " + format_duration(head_wait()) + " for the next one");
          orphan_ = true;
          self_->delayed_send(caf::actor{self_}, head_wait(), LeaseOver{frame_.term});
        },
        [this](const HeadFound& found) {
          orphan_ = false;
          say_hello(); // with the term of the head that is gone
          for (const auto& [pid, child] : children_)
            if (frame_.joined && child.tail.last()) send_log(child, *child.tail.last()); // the lost head may not have written it
          frame_.term = found.term;
        },
        [this](const LeaseOver& wait) {
          if (!orphan_ || wait.term != frame_.term) return;
          *outcome_ = fail(ErrorCode::kUnavailable, "the head was gone for " + format_duration(head_wait()));
          finish();
        },
        [this](const StopNode& order) {
          log_info("stopping: " + order.reason);
          finish();
        },
        [this](const StopRun& stop) { leave(stop); },
        [this](const FencedOff& order) {
          *outcome_ = fail(ErrorCode::kFenced, order.reason);
          finish();
        },
    };
  }

 private:
  [[nodiscard]] Duration head_wait() const { return std::chrono::milliseconds(frame_.head_wait_ms); }

  void say_hello() {
    NodeHello hello{frame_.node, static_cast<std::int32_t>(::getpid()), {}, {}, frame_.term, {}};
    if (frame_.joined) {
      hello.host = host_name();
      hello.address = address_towards(frame_.head_host).value_or("");
    }
    for (const auto& [worker, incarnation] : started_) hello.children.push_back({worker, incarnation, 0});
    for (NodeChild& child : hello.children)
      for (const auto& [pid, living] : children_)
        if (living.name == child.name && living.incarnation == child.incarnation) child.pid = static_cast<std::int32_t>(pid);
    self_->send(head_, std::move(hello), caf::actor{self_});
  }

  void leave(const StopRun& stop) {
    if (std::exchange(leaving_, true)) {
      *outcome_ = fail(ErrorCode::kCancelled, stop.reason + " twice");
      return finish();
    }
    log_info(stop.reason + ": leaving the run; the workers here finish or hand over first (again to end at once)");
    self_->send(head_, LeaveRun{frame_.node});
  }

  // The head knows its own paths and address; a machine that joined has others.
  Result<std::string> local_frame(const std::string& text) const {
    if (!frame_.joined) return text;
    TROUPE_TRY(WorkerFrame frame, decode_frame(text));
    frame.run_folder = frame_.run_folder;
    frame.credential = frame_.credential;
    frame.head_host = frame_.head_host;
    frame.head_port = frame_.head_port;
    frame.joined = true;
    frame.bulk_device = frame_.bulk_device;
    return encode_frame(frame);
  }

  void start(const StartWorker& order) {
    const auto id = worker_id(order.name, order.incarnation);
    if (!id) return log_warning(id.error().to_string());
    if (const auto started = spawn(order, fs::path(frame_.run_folder) / "logs" / log_name(*id)); !started)
      self_->send(head_, WorkerExited{order.name, order.incarnation, 127, 0, started.error().message});
    else
      self_->send(head_, WorkerStarted{order.name, order.incarnation, static_cast<std::int32_t>(*started)});
  }

  Result<pid_t> spawn(const StartWorker& order, const fs::path& log) {
    TROUPE_TRY(const FileDescriptor page, WorkProgress::create_file());
    TROUPE_TRY(WorkProgress progress, WorkProgress::map(page.get()));
    TROUPE_TRY(const std::string text, local_frame(order.frame));
    TROUPE_TRY(const FileDescriptor frame, frame_file(text));
    ProcessSpec spec;
    spec.executable = order.torch ? executables_.torch.get() : executables_.plain.get();
    spec.argv = order.torch ? std::vector<std::string>{"troupe-worker", order.name} : std::vector<std::string>{"troupe", "worker", order.name};
    spec.descriptors = {{frame.get(), kFrameDescriptor}, {page.get(), kProgressDescriptor}};
    FileDescriptor weights;
    if (order.weights) {
      weights = FileDescriptor(::memfd_create("troupe-weights", MFD_CLOEXEC));
      if (!weights.valid()) return tl::unexpected(system_error("create", "the memory file for weights", errno));
      spec.descriptors.emplace_back(weights.get(), kWeightsDescriptor);
    }
    spec.output = log;
    ::setenv("OMP_WAIT_POLICY", "passive", 1); // processes share the cores: a spinning thread holds up another worker
    ::setenv("OMP_NUM_THREADS", std::to_string(std::max(1, order.threads)).c_str(), 1);
    TROUPE_TRY(const pid_t pid, keeper_->start(std::move(spec)));
    started_[order.name] = order.incarnation;
    children_.emplace(pid, Child{order.name, order.incarnation, log, std::move(progress), LogTail(log, host_name() + ":" + log.string())});
    if (frame_.joined) self_->send(head_, WorkerLog{order.name, order.incarnation, 0, {}}); // empty as yet, but there
    return pid;
  }

  void report() {
    NodeReport report{frame_.node, {}, {}};
    if (reports_++ % kListenersEvery == 0) read_listeners();
    report.listeners = listeners_;
    for (const auto& [pid, child] : children_) {
      const WorkReading reading = child.progress.read();
      report.workers.push_back({child.name, child.incarnation, reading.moves, reading.busy});
    }
    self_->send(head_, std::move(report));
    send_logs();
    self_->delayed_send(caf::actor{self_}, kReportEvery, Beat{});
  }

  // The head's own machine writes into the run folder itself.
  void send_logs() {
    if (!frame_.joined || orphan_ || children_.empty()) return;
    for (auto& [pid, child] : children_)
      if (const auto piece = child.tail.next(kLogBytesMax / children_.size())) send_log(child, *piece);
  }

  void send_log(const Child& child, const LogTail::Piece& piece) { self_->send(head_, WorkerLog{child.name, child.incarnation, piece.offset, piece.text}); }

  void read_listeners() {
    std::map<std::int32_t, std::string> names{{static_cast<std::int32_t>(::getpid()), frame_.node}};
    for (const auto& [pid, child] : children_) names[static_cast<std::int32_t>(pid)] = child.name;
    std::vector<std::int32_t> pids;
    for (const auto& [pid, worker] : names) pids.push_back(pid);
    listeners_.clear();
    for (const Listener& l : listeners_of(pids)) listeners_.push_back({names.at(l.pid), l.address, l.port});
  }

  void kill(const KillWorker& order) {
    for (const auto& [pid, child] : children_)
      if (child.name == order.name && child.incarnation == order.incarnation) keeper_->signal(pid, SIGKILL);
  }

  void exited(pid_t pid, ExitStatus status) {
    const auto it = children_.find(pid);
    if (it == children_.end()) return;
    if (frame_.joined)
      if (const auto piece = it->second.tail.next(kLogBytesMax)) send_log(it->second, *piece); // its last words
    std::string how = to_string(status) + "; log: " + it->second.log.string();
    if (status.code != 0 || status.signal != 0)
      if (const std::string line = last_line(it->second.log); !line.empty()) how += "; last line: " + line;
    self_->send(head_, WorkerExited{it->second.name, it->second.incarnation, status.code, status.signal, how});
    children_.erase(it);
  }

  void finish() {
    keeper_.reset(); // kills and reaps what is left
    self_->quit();
  }

  caf::event_based_actor* self_;
  WorkerFrame frame_;
  Executables executables_;
  caf::actor head_;
  Status* outcome_; // owned by run_node_agent, which outlives the actor
  std::map<pid_t, Child> children_;
  std::map<std::string, std::uint32_t> started_; // the newest incarnation of each name
  std::vector<NodeListener> listeners_;
  int reports_ = 0;
  bool orphan_ = false, leaving_ = false;
  std::unique_ptr<ProcessKeeper> keeper_;
};

} // namespace

Status run_node_agent(const WorkerFrame& frame) {
  TROUPE_TRY(auto executables, open_executables());
  SystemOptions options;
  options.credential = frame.credential;
  System system(options);
  TROUPE_TRY(const auto link, HeadLink::open(system, frame));
  const caf::actor head = link->actor();
  Status outcome;
  {
    caf::scoped_actor self{system.caf()};
    // Detached: starting a process blocks for milliseconds.
    const caf::actor agent = self->spawn<caf::detached>(
        [&frame, &head, &outcome, files = std::make_shared<Executables>(std::move(executables))](caf::event_based_actor* actor) -> caf::behavior {
          auto state = std::make_shared<AgentState>(actor, frame, std::move(*files), head, &outcome);
          actor->attach_functor([state] {});
          return state->make_behavior();
        });
    link->set_owner(agent);
    std::optional<SignalThread> signals;
    if (frame.joined) signals.emplace(agent);
    self->wait_for(agent);
  }
  return outcome;
}

} // namespace troupe::actors
