#include "sim/ranks.h"

#include <algorithm>
#include <utility>

namespace troupe::sim {

using namespace protocol;
using namespace std::chrono_literals;

namespace {
constexpr Duration kCommDeadline = 4s;
}

// ---- what is between them

void Ring::arrive(std::uint32_t rank, PolicyVersion at, std::function<void()> done, std::function<void(std::string)> broken) {
  if (ended_) return world_.after(1ms, [broken = std::move(broken), why = *ended_] { broken(why); });
  require(!waiting_.contains(rank), "a rank is in one collective at a time");
  waiting_[rank] = {at, std::move(done), std::move(broken)};
  if (waiting_.size() < ranks_) {
    return world_.after(kCommDeadline, [this, round = round_] {
      if (round == round_) end("no word of the other ranks within 4 s");
    });
  }
  ++round_;
  for (auto& [index, member] : std::exchange(waiting_, {})) {
    require(member.at == at, "the ranks of a mesh hold the same version");
    world_.after(world_.millis(1, 30), std::move(member.done));
  }
}

void Ring::end(const std::string& reason) {
  if (ended_) return;
  ended_ = reason;
  ++round_;
  for (auto& [index, member] : std::exchange(waiting_, {}))
    world_.after(world_.millis(1, 20), [broken = std::move(member.broken), reason] { broken(reason); });
}

// ---- the mesh

RankProcess::RankProcess(World& world, WorkerId name, Rings& rings) : Process(world, name), rings_(rings), store_(options()) {}

PublicationOptions RankProcess::options() {
  PublicationOptions o;
  o.lease = 3s;
  o.leases_max = 16;
  return o;
}

void RankProcess::end() {
  Process::end();
  if (ring_) ring_->end("connection closed by " + to_string(id));
}

std::function<void()> RankProcess::here(std::function<void()> action) {
  return [this, mesh = mesh_, action = std::move(action)] {
    deliver([this, mesh, action] {
      if (mesh == mesh_) action();
    });
  };
}

void RankProcess::end_before(std::uint64_t mesh, const std::string& reason) {
  if (mesh <= ended_before_) return;
  ended_before_ = mesh;
  if (ring_ && mesh_ < mesh) ring_->end(reason);
}

void RankProcess::abort(std::uint64_t mesh, const std::string& reason) { end_before(mesh + 1, reason); }

void RankProcess::build(const mesh::Build& order, std::uint32_t ranks, const Trained& state, std::function<void()> fail) {
  end_before(order.mesh, "the ranks build a new mesh");
  if (order.order.held) {
    if (!loaded_ || trained_.version != order.order.version) return fail();
  } else {
    trained_ = state;
    loaded_ = true;
    ++loads_;
    running_.reset();
    if (id.index == 0) store(publication::NewEpoch{state.version.epoch});
    copy_weights();
  }
  mesh_ = order.mesh;
  ranks_ = ranks;
  ring_.reset();
  asked_.clear();
  if (order.mesh < ended_before_) return broken("the mesh is over");
  if (ranks == 1) return connected();
  find_the_others();
}

// Every member puts its address down and waits for those of the others, as Gloo does.
void RankProcess::find_the_others() {
  store_set(mesh_, protocol::worker_name(id), "address");
  for (std::uint32_t other = 0; other < ranks_; ++other) {
    asked_.insert(++requests_);
    store_get(mesh_, requests_, "rank/" + std::to_string(other));
  }
  world_.after(kCommDeadline, here([this, mesh = mesh_] {
                 if (mesh == mesh_ && !asked_.empty()) broken("the head had no word of the other ranks within 4 s");
               }));
}

void RankProcess::answered(const MeshStore::Answer& answer) {
  if (asked_.erase(answer.request) == 0) return;
  if (answer.error) {
    asked_.clear();
    return broken(answer.error->message);
  }
  require(answer.value == "address", "the store gives what was put there");
  if (asked_.empty()) connect();
}

void RankProcess::connect() {
  auto& ring = rings_[mesh_];
  if (!ring) ring = std::make_shared<Ring>(world_, ranks_);
  ring_ = ring;
  if (mesh_ < ended_before_) ring_->end("the mesh is over");
  ring_->arrive(id.index, trained_.version, here([this] { connected(); }),
                [this, mesh = mesh_](const std::string& error) {
                  deliver([this, mesh, error] {
                    if (mesh == mesh_) broken(error);
                  });
                });
}

void RankProcess::connected() {
  connected_in_ = mesh_;
  tell_reliably(mesh::Event{mesh::Ready{mesh_, id.index}});
}

// It waits for the next mesh: what the others have done is the head's to judge.
void RankProcess::broken(const std::string& error) { tell(mesh::Event{mesh::Broken{mesh_, id.index, error}}); }

// ---- steps

void RankProcess::adopted(std::function<void(std::optional<PolicyVersion>)> say) {
  const auto holds = [this] { return loaded_ ? std::optional(trained_.version) : std::nullopt; };
  if (!running_) return say(holds());
  say_ = [say = std::move(say), holds](std::optional<PolicyVersion>) { say(holds()); };  // what is under way is done first
}

void RankProcess::train_rl(const rollout::RequestTrainStep& request) {
  if (!loaded_ || running_ || request.from.epoch != trained_.version.epoch) return;
  if (request.from < trained_.version) {
    if (id.index == 0) tell(rollout::Event{rollout::StepDone{trained_.version}});
    return;
  }
  if (trained_.version == request.from) begin_step(request.from, request.prompts, true);
}

void RankProcess::train_alone(PolicyVersion from) {
  if (loaded_ && !running_ && trained_.version == from) begin_step(from, {}, false);
}

void RankProcess::begin_step(PolicyVersion from, std::vector<std::uint64_t> prompts, bool rl) {
  running_ = from;
  world_.after(world_.millis(50, 600), [this, prompts = std::move(prompts), rl, n = loads_] {
    deliver([this, n, prompts, rl] { computed(n, prompts, rl); });
  });
}

// The gradients are there; they are summed over the ranks.
void RankProcess::computed(std::uint64_t incarnation, const std::vector<std::uint64_t>& prompts, bool rl) {
  if (incarnation != loads_) return;
  if (ranks_ == 1) return finish_step(incarnation, prompts, rl);
  if (!ring_) return;
  ring_->arrive(id.index, trained_.version, [this, incarnation, prompts, rl] { deliver([this, incarnation, prompts, rl] { finish_step(incarnation, prompts, rl); }); },
                [this, incarnation](const std::string& error) {
                  deliver([this, incarnation, error] {
                    if (incarnation != loads_) return;
                    running_.reset();
                    loaded_ = false;  // half a step: not what it was
                    broken(error);
                    if (const auto say = std::exchange(say_, nullptr)) say(std::nullopt);
                  });
                });
}

void RankProcess::finish_step(std::uint64_t incarnation, const std::vector<std::uint64_t>& prompts, bool rl) {
  if (incarnation != loads_) return;
  running_.reset();
  ++trained_.version.step;
  for (const std::uint64_t prompt : prompts) {
    const bool twice = std::find(trained_.prompts.begin(), trained_.prompts.end(), prompt) != trained_.prompts.end();
    require(!twice, "prompt " + std::to_string(prompt) + " is trained twice");
    trained_.prompts.push_back(prompt);
  }
  world_.log(to_string(id) + ": step to " + to_string(trained_.version));
  if (id.index == 0) {
    const rollout::Event done = rollout::StepDone{trained_.version};
    if (rl) tell(done);  // asked for again when it is lost
    else tell_reliably(done);
    copy_weights();
  }
  if (const auto say = std::exchange(say_, nullptr)) say(std::nullopt);
}

// ---- rank/0 for all of them

void RankProcess::start_publish(PolicyVersion version) {
  if (loaded_) store(publication::Publish{version});
}

void RankProcess::copy_state(std::uint64_t save, PolicyVersion version, const std::shared_ptr<WriterProcess>& writer) {
  if (!loaded_ || !writer || !writer->alive) return;
  if (trained_.version == version) writer->memory[save] = trained_;  // else it is too late, and says so
  tell(checkpoint::Event{checkpoint::StateCopied{save, 0, trained_.version}});
}

void RankProcess::jump_clock(Duration by) {
  skew_ += by;
  deliver([this] { store(Wake{}); });
}

void RankProcess::store(const publication::Event& event) {
  for (const publication::Effect& effect : store_.handle(event, clock())) {
    if (const auto* renew = std::get_if<publication::RenewSlot>(&effect)) {
      memory_[renew->slot].first = renew->generation;
    } else if (const auto* fill = std::get_if<publication::FillSlot>(&effect)) {
      fill_ = *fill;
      if (!running_) world_.after(0ms, [this] { deliver([this] { copy_weights(); }); });
    } else if (const auto* ready = std::get_if<publication::Ready>(&effect)) {
      tell(rollout::Event{rollout::Published{ready->version}});
    } else if (const auto* rejected = std::get_if<publication::Rejected>(&effect)) {
      tell(rollout::Event{rollout::PublishFailed{rejected->version, rejected->error.message}});
    } else if (const auto* timer = std::get_if<ArmTimer>(&effect)) {
      world_.after(timer->at - clock(), [this] { deliver([this] { store(Wake{}); }); });
    } else if (const auto* grant = std::get_if<publication::Grant>(&effect)) {
      if (readers.contains(grant->reader)) readers[grant->reader](effect);
    } else if (const auto* refuse = std::get_if<publication::Refuse>(&effect)) {
      if (readers.contains(refuse->reader)) readers[refuse->reader](effect);
    }
  }
}

// The work thread reaches the order after the step it is at: what it holds then is what it copies.
void RankProcess::copy_weights() {
  if (!fill_ || running_) return;
  const publication::FillSlot order = *std::exchange(fill_, std::nullopt);
  const PolicyVersion now = trained_.version;
  const bool fits = now.epoch == order.version.epoch && now >= order.version;
  if (fits) memory_[order.slot].second = now;  // from here on the bytes change under a reader
  world_.after(world_.millis(5, 60), [this, order, now, fits] {
    deliver([this, order, now, fits] {
      if (fits) store(publication::Filled{order.slot, now});
      else store(publication::FillFailed{order.slot, order.version, "the trainer holds " + to_string(now)});
    });
  });
}

} // namespace troupe::sim
