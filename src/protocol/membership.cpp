#include "protocol/membership.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace troupe::protocol {

using namespace membership;

std::string_view to_string(MemberState state) {
  switch (state) {
    case MemberState::kStarting:
    case MemberState::kJoining: return "joining";
    case MemberState::kServing: return "serving";
    case MemberState::kSuspect: return "suspect";
    case MemberState::kKilling: return "dead";
    case MemberState::kDraining: return "draining";
  }
  return "unknown";
}

std::vector<Effect> Membership::handle(const Event& event, TimePoint now) {
  effects_.clear();
  now_ = now;
  std::visit([this](const auto& e) { on(e); }, event);
  check_deadlines();
  for (auto& [name, state] : roles_) balance(name, state);
  arm();
  return std::exchange(effects_, {});
}

void Membership::on(const NodeJoined& e) {
  if (nodes_.size() >= options_.nodes_max && !nodes_.contains(e.node)) {
    effects_.emplace_back(Note{LogLevel::kError, to_string(e.node) + " is not taken: the run has its " +
                                                     std::to_string(options_.nodes_max) + " machines"});
    return;
  }
  nodes_[e.node] = Node{false, e.rollouts_only};
}

void Membership::on(const NodeLost& e) {
  if (nodes_.erase(e.node) == 0) return;
  std::vector<WorkerId> lost;
  for (const auto& [id, member] : members_) {
    if (member.node == e.node) lost.push_back(id);
  }
  for (const WorkerId id : lost) gone(id, to_string(e.node) + " is lost: " + e.reason, Blame::kNode);
}

void Membership::on(const NodeDraining& e) {
  const auto node = nodes_.find(e.node);
  if (node == nodes_.end()) return;
  node->second.draining = true;
  for (auto& [id, member] : members_) {
    if (member.node == e.node && !member.unwanted) retire(member);
  }
}

void Membership::on(const SetWanted& e) {
  RoleState& state = role(e.role);
  const std::string scale = "scale " + std::string(to_string(e.role)) + "=" + std::to_string(e.count);
  if (e.generation <= state.generation) {
    effects_.emplace_back(ScaleRefused{e, Error{ErrorCode::kFenced, scale + " was overtaken by a later one", {}}});
  } else if (e.count > options_.workers_max) {
    effects_.emplace_back(ScaleRefused{
        e, Error{ErrorCode::kInvalidArgument,
                 scale + " exceeds the " + std::to_string(options_.workers_max) + " workers a role may have",
                 {}}});
  } else {
    state.wanted = e.count;
    state.generation = e.generation;
    state.given_up = false;
  }
}

void Membership::on(const Registered& e) {
  Member* member = find(e.worker);
  if (member == nullptr || member->state != MemberState::kStarting) return;
  member->last_heard = now_;
  set_state(*member, MemberState::kJoining);
}

void Membership::on(const Serving& e) {
  Member* member = find(e.worker);
  if (member == nullptr) return;
  if (member->state == MemberState::kJoining) set_state(*member, MemberState::kServing);
}

void Membership::on(const Heard& e) {
  Member* member = find(e.worker);
  if (member == nullptr) return;
  member->last_heard = now_;
  if (member->state != MemberState::kSuspect) return;
  set_state(*member, MemberState::kServing);
  effects_.emplace_back(Cleared{e.worker});
}

void Membership::on(const Worked& e) {
  Member* member = find(e.worker);
  if (member == nullptr) return;
  const bool still = e.busy && member->busy_since && e.moves == member->moves;
  if (!still) member->busy_since = e.busy ? std::optional(now_) : std::nullopt;
  member->moves = e.moves;
}

void Membership::on(const LinkDown& e) {
  Member* member = find(e.worker);
  if (member == nullptr || member->state != MemberState::kServing) return;
  set_state(*member, MemberState::kSuspect);
  effects_.emplace_back(Suspected{e.worker});
}

void Membership::on(const Unfit& e) {
  if (Member* member = find(e.worker)) kill(*member, e.reason);
}

void Membership::on(const Empty& e) {
  const Member* member = find(e.worker);
  if (member != nullptr && member->state == MemberState::kDraining) effects_.emplace_back(StopWorker{e.worker});
}

void Membership::on(const Exited& e) { gone(e.worker, e.reason, Blame::kWorker); }

void Membership::on(const StartFailed& e) { gone(e.worker, "it could not be started: " + e.reason, Blame::kWorker); }

void Membership::on(const Adopt& e) {
  if (find(e.worker) != nullptr) return;
  on(Known{e.worker});
  Member& member = members_[e.worker];
  member.id = e.worker;
  member.node = e.node;
  member.restarts = role(e.worker.role).slots[e.worker.index].restarts;
  member.last_heard = now_;
  set_state(member, MemberState::kJoining);
}

void Membership::on(const Known& e) {
  Slot& slot = role(e.worker.role).slots[e.worker.index];
  slot.next_incarnation = std::max(slot.next_incarnation, e.worker.incarnation + 1);
  slot.restarts = std::max(slot.restarts, e.worker.incarnation);
}

// It may have come early (a clock that was put back): then the next one is still to be asked for.
void Membership::on(const Wake&) { armed_.reset(); }

void Membership::check_deadlines() {
  for (auto& [id, member] : members_) {
    const Duration silent = now_ - member.last_heard;
    const Duration in_state = now_ - member.since;
    switch (member.state) {
      case MemberState::kStarting:
        if (in_state >= options_.join_deadline)
          kill(member, "it did not register within " + format_duration(options_.join_deadline));
        break;
      case MemberState::kServing:
      case MemberState::kSuspect:
      case MemberState::kJoining:
        if (silent >= options_.dead_after) {
          kill(member, "it was silent for " + format_duration(silent));
        } else if (member.busy_since && now_ - *member.busy_since >= options_.work_silence) {
          kill(member, "its work thread is stuck: busy, and without a move for " + format_duration(now_ - *member.busy_since));
        } else if (silent >= options_.suspect_after && member.state == MemberState::kServing) {
          set_state(member, MemberState::kSuspect);
          effects_.emplace_back(Suspected{id});
        }
        break;
      case MemberState::kKilling:
        if (now_ - member.kill_sent >= options_.kill_repeat) send_kill(member, "it is still there");
        break;
      case MemberState::kDraining:
        if (in_state >= options_.drain_deadline + options_.drain_grace)
          kill(member, "it did not leave within its drain deadline");
        break;
    }
  }
}

std::uint32_t Membership::target(Role name, const RoleState& state) const {
  return state.wanted + (name == Role::kRollout && state.wanted > 0 ? options_.spares : 0);
}

void Membership::balance(Role name, RoleState& state) {
  const std::uint32_t target = this->target(name, state);
  std::uint32_t present = 0;
  for (const auto& [id, member] : members_) present += id.role == name && !member.unwanted ? 1 : 0;
  if (present < target && !state.given_up) start_missing(name, state, target - present);
  // Before the first SetWanted nothing is known about what is too much (adopted workers).
  if (present > target && state.generation > 0) drain_surplus(name, present - target);
}

void Membership::start_missing(Role name, RoleState& state, std::uint32_t missing) {
  std::uint32_t index = 0;
  for (; missing > 0; ++index) {
    const auto taken = [&](const auto& entry) { return entry.first.role == name && entry.first.index == index; };
    if (std::any_of(members_.begin(), members_.end(), taken)) continue;
    --missing;
    Slot& slot = state.slots[index];
    if (slot.not_before > now_) continue;  // its back-off; the timer comes back
    const std::optional<NodeId> node = place(name);
    if (!node) return;
    const WorkerId id{name, index, slot.next_incarnation++};
    Member& member = members_[id];
    member.id = id;
    member.node = *node;
    member.restarts = slot.restarts;
    member.last_heard = now_;
    set_state(member, MemberState::kStarting);
    effects_.emplace_back(StartWorker{id, *node});
  }
}

void Membership::drain_surplus(Role name, std::uint32_t surplus) {
  std::vector<Member*> candidates;
  for (auto& [id, member] : members_) {
    if (id.role == name && !member.unwanted) candidates.push_back(&member);
  }
  // Those that give nothing yet go first, then the highest index.
  const auto key = [](const Member* m) {
    const bool useful = m->state == MemberState::kServing || m->state == MemberState::kSuspect;
    return std::tuple(useful, ~m->id.index);
  };
  std::sort(candidates.begin(), candidates.end(), [&](const Member* a, const Member* b) { return key(a) < key(b); });
  for (std::uint32_t i = 0; i < surplus; ++i) retire(*candidates[i]);
}

void Membership::retire(Member& member) {
  member.unwanted = true;
  if (member.state == MemberState::kStarting) return kill(member, "it is no longer wanted");
  if (member.state == MemberState::kKilling) return;
  set_state(member, MemberState::kDraining);
  effects_.emplace_back(DrainWorker{member.id, now_ + options_.drain_deadline});
}

void Membership::kill(Member& member, const std::string& reason) {
  if (member.state == MemberState::kKilling) return;
  if (member.state == MemberState::kServing) effects_.emplace_back(Suspected{member.id});
  set_state(member, MemberState::kKilling);
  member.reason = reason;
  send_kill(member, reason);
}

void Membership::send_kill(Member& member, const std::string& reason) {
  member.kill_sent = now_;
  effects_.emplace_back(KillWorker{member.id, member.node, reason});
}

void Membership::gone(WorkerId id, const std::string& exit, Blame blame) {
  const auto it = members_.find(id);
  if (it == members_.end()) return;
  const Member member = it->second;
  members_.erase(it);
  const std::string reason = member.reason.empty() ? exit : member.reason + " (" + exit + ")";
  effects_.emplace_back(Gone{id, reason, !member.unwanted});
  if (member.unwanted) return;
  RoleState& state = role(id.role);
  Slot& slot = state.slots[id.index];
  ++slot.restarts;
  if (blame == Blame::kNode) return;  // not its fault: replaced at once, on another machine
  const auto verdict = state.policy.on_failure({to_string(id), reason, now_});
  if (const auto* restart = std::get_if<RestartAt>(&verdict)) {
    slot.not_before = restart->at;
  } else if (!state.given_up) {
    state.given_up = true;
    effects_.emplace_back(
        GiveUp{id.role, std::string(to_string(id.role)) + " workers: " + std::get<Escalate>(verdict).reason});
  }
}

void Membership::set_state(Member& member, MemberState state) {
  member.state = state;
  member.since = now_;
}

void Membership::arm() {
  std::optional<TimePoint> first;
  const auto consider = [&](TimePoint at) {
    if (at > now_) first = first ? std::min(*first, at) : at;
  };
  for (const auto& [id, member] : members_) {
    if (member.busy_since) consider(*member.busy_since + options_.work_silence);
    switch (member.state) {
      case MemberState::kStarting: consider(member.since + options_.join_deadline); break;
      case MemberState::kServing: consider(member.last_heard + options_.suspect_after); break;
      case MemberState::kJoining:
      case MemberState::kSuspect: consider(member.last_heard + options_.dead_after); break;
      case MemberState::kKilling: consider(member.kill_sent + options_.kill_repeat); break;
      case MemberState::kDraining: consider(member.since + options_.drain_deadline + options_.drain_grace); break;
    }
  }
  for (const auto& [name, state] : roles_) {
    for (const auto& [index, slot] : state.slots) consider(slot.not_before);
  }
  if (!first || (armed_ && *armed_ > now_ && *armed_ <= *first)) return;
  armed_ = *first;
  effects_.emplace_back(ArmTimer{*first});
}

Member* Membership::find(WorkerId worker) {
  const auto it = members_.find(worker);
  return it == members_.end() ? nullptr : &it->second;
}

Membership::RoleState& Membership::role(Role name) { return roles_.try_emplace(name, options_.restart).first->second; }

std::optional<NodeId> Membership::place(Role name) const {
  std::optional<NodeId> best;
  std::uint32_t fewest = 0;
  for (const auto& [node, state] : nodes_) {
    if (state.draining || (state.rollouts_only && name != Role::kRollout)) continue;
    const auto here = [&, id = node](const auto& entry) { return entry.second.node == id && entry.first.role == name; };
    const auto load = static_cast<std::uint32_t>(std::count_if(members_.begin(), members_.end(), here));
    if (best && load >= fewest) continue;
    best = node;
    fewest = load;
  }
  return best;
}

std::uint32_t Membership::wanted(Role name) const {
  const auto it = roles_.find(name);
  return it == roles_.end() ? 0 : it->second.wanted;
}

std::uint64_t Membership::generation(Role name) const {
  const auto it = roles_.find(name);
  return it == roles_.end() ? 0 : it->second.generation;
}

std::uint32_t Membership::count(Role name, MemberState state) const {
  const auto matches = [&](const auto& entry) { return entry.first.role == name && entry.second.state == state; };
  return static_cast<std::uint32_t>(std::count_if(members_.begin(), members_.end(), matches));
}

} // namespace troupe::protocol
