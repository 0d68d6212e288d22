#include "actors/runtime/head_link.h"

#include <caf/all.hpp>

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "actors/messages/all.h"
#include "actors/runtime/network.h"
#include "base/log.h"

namespace troupe::actors {
namespace {

using nlohmann::json;
constexpr auto kLookEvery = std::chrono::milliseconds(100);
constexpr auto kAnswerWithin = std::chrono::seconds(2); // of a head that is looked for

} // namespace

Status write_head_point(const std::filesystem::path& run_folder, const HeadPoint& point) {
  const json j{{"term", point.term}, {"host", point.host}, {"port", point.port}};
  return write_file_atomic(run_folder / "head.json", j.dump() + "\n", 0600);
}

Result<HeadPoint> read_head_point(const std::filesystem::path& run_folder) {
  TROUPE_TRY(const auto text, read_file(run_folder / "head.json"));
  const json j = json::parse(text, nullptr, false);
  try {
    return HeadPoint{j.at("term").get<std::uint64_t>(), j.at("host").get<std::string>(), j.at("port").get<std::uint16_t>()};
  } catch (const json::exception& e) {
    return fail(ErrorCode::kCorrupt, (run_folder / "head.json").string() + " is damaged: " + e.what());
  }
}

struct HeadLink::Shared {
  Shared(System& s, const WorkerFrame& f) : system(s), folder(f.run_folder), term(f.term) {
    if (f.joined) known = Endpoint{f.head_host, f.head_port};
  }

  caf::behavior proxy_behavior(caf::event_based_actor* self, caf::actor first) {
    auto head = std::make_shared<caf::actor>(std::move(first));
    self->monitor(*head);
    self->set_down_handler([this, head](const caf::down_msg& message) {
      if (!*head || message.source != head->address()) return;
      *head = {};
      lost();
    });
    self->set_default_handler([self, head](caf::scheduled_actor*, caf::message& message) -> caf::skippable_result {
      if (*head) self->send(*head, message);
      return caf::message{};
    });
    return {[self, head](const HeadIs& found) {
      if (!found.head) return self->quit(); // the end of the link, after everything that was sent before
      *head = found.head;
      self->monitor(*head);
    }};
  }

  void lost() {
    const std::lock_guard lock(mutex);
    searching = true;
    changed.notify_one();
    if (owner) caf::anon_send(owner, HeadLost{});
  }

  // Looks for a head of a later term, from the moment the present one is lost.
  void search() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      changed.wait(lock, [this] { return stopping || (searching && owner); });
      while (!stopping && searching) {
        searching = false; // a head that is found and lost again meanwhile sets it anew
        lock.unlock();
        const bool found = look();
        lock.lock();
        if (found) continue;
        searching = true;
        changed.wait_for(lock, kLookEvery, [this] { return stopping; });
      }
    }
  }

  bool look() { return known ? look_there() : look_in_folder(); }

  bool look_in_folder() {
    const auto point = read_head_point(folder);
    if (!point || point->term <= term) return false;
    const auto head = system.connect(point->host, point->port);
    return head && found(*head, point->term);
  }

  bool look_there() {
    if (!connect_to(*known, kAnswerWithin)) return false; // CAF would wait for minutes
    const auto head = system.connect(known->host, known->port);
    if (!head) return false;
    std::optional<std::uint64_t> its_term;
    caf::scoped_actor self{system.caf()};
    self->request(*head, kAnswerWithin, AskTerm{}).receive([&](const TermIs& is) { its_term = is.term; }, [](const caf::error&) {});
    return its_term && *its_term >= term && found(*head, *its_term);
  }

  bool found(const caf::actor& head, std::uint64_t its_term) {
    log_info("the head of term " + std::to_string(its_term) + " is there");
    term = its_term;
    caf::anon_send(proxy, HeadIs{head}); // before the owner's first message to it
    caf::anon_send(owner, HeadFound{term});
    return true;
  }

  System& system;
  const std::filesystem::path folder;
  std::optional<Endpoint> known; // a machine that joined
  std::uint64_t term; // of the newest head; the thread's own once it runs
  caf::actor proxy;
  std::mutex mutex;
  std::condition_variable changed;
  caf::actor owner;
  bool searching = false, stopping = false;
  std::thread thread;
};

Result<std::unique_ptr<HeadLink>> HeadLink::open(System& system, const WorkerFrame& frame) {
  TROUPE_TRY(caf::actor head, system.connect(frame.head_host, frame.head_port));
  auto shared = std::make_unique<Shared>(system, frame);
  shared->proxy = system.caf().spawn([s = shared.get(), head](caf::event_based_actor* self) { return s->proxy_behavior(self, head); });
  shared->thread = std::thread([s = shared.get()] { s->search(); });
  return std::unique_ptr<HeadLink>(new HeadLink(std::move(shared)));
}

HeadLink::HeadLink(std::unique_ptr<Shared> shared) : shared_(std::move(shared)) {}

HeadLink::~HeadLink() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_one();
  }
  shared_->thread.join();
  caf::scoped_actor self{shared_->system.caf()};
  self->send(shared_->proxy, HeadIs{});
  self->wait_for(shared_->proxy);
}

const caf::actor& HeadLink::actor() const { return shared_->proxy; }

void HeadLink::set_owner(caf::actor owner) {
  const std::lock_guard lock(shared_->mutex);
  shared_->owner = std::move(owner);
  if (shared_->searching) caf::anon_send(shared_->owner, HeadLost{});
  shared_->changed.notify_one();
}

} // namespace troupe::actors
