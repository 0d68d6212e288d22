/// @file
/// Which machines and workers there are, which ones there should be, and what to start, drain or kill next.
///
///     starting -> joining -> serving <-> suspect -> (killed) -> gone        draining -> gone
///
/// Suspect is not dead: only the confirmed exit of the process (or the loss of its machine) makes room for a
/// replacement, which has the same index and the next incarnation. A draining worker that dies is not replaced.
/// A joining worker becomes serving when the director says so (it holds the current weights).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "protocol/restart_policy.h"
#include "protocol/types.h"

namespace troupe::protocol {

enum class MemberState : std::uint8_t {
  kStarting = 1,  ///< The agent was told to start it. Shown to users as "joining".
  kJoining = 2,   ///< Registered, not routable.
  kServing = 3,
  kSuspect = 4,   ///< Silent for a second.
  kKilling = 5,   ///< Its agent was told to kill it; waiting for the exit.
  kDraining = 6,
};
/// The word users see: "joining", "serving", "suspect", "dead" (being killed), "draining".
[[nodiscard]] std::string_view to_string(MemberState state);

struct Member {
  WorkerId id;
  NodeId node;
  MemberState state = MemberState::kStarting;
  std::uint32_t restarts = 0;  ///< Of this index, so far.
  TimePoint last_heard{};
  TimePoint since{};           ///< Of the present state.
  TimePoint kill_sent{};
  std::uint64_t moves = 0;     ///< Of its work thread, as its agent last read them.
  std::optional<TimePoint> busy_since; ///< The work thread is busy and has not moved since.
  bool unwanted = false;       ///< Scaled away or drained: not replaced when gone.
  std::string reason;          ///< Why it is being killed.
};

namespace membership {

struct NodeJoined {
  NodeId node;
  bool rollouts_only = false; ///< A machine besides the head's: everything else wants the run folder or shared memory.
};
struct NodeLost {
  NodeId node;
  std::string reason;
};
/// Nothing new is placed on it; its workers drain.
struct NodeDraining {
  NodeId node;
};
/// `troupe scale`: the highest generation wins, whatever the order of arrival.
struct SetWanted {
  Role role = Role::kRollout;
  std::uint32_t count = 0;
  std::uint64_t generation = 0;
};
struct Registered {
  WorkerId worker;
};
/// The director (or whoever uses the role) can use it now.
struct Serving {
  WorkerId worker;
};
/// Any sign of life.
struct Heard {
  WorkerId worker;
};
/// What its agent read of its work thread: whether it is in the middle of something, and how far.
struct Worked {
  WorkerId worker;
  std::uint64_t moves = 0;
  bool busy = false;
};
/// The link was cut: suspect at once.
struct LinkDown {
  WorkerId worker;
};
/// Of no use although alive: killed and replaced.
struct Unfit {
  WorkerId worker;
  std::string reason;
};
/// A draining worker owns nothing any more (from the director or the worker): let it exit.
struct Empty {
  WorkerId worker;
};
/// The agent saw the process end. The only proof of death besides NodeLost.
struct Exited {
  WorkerId worker;
  std::string reason;
};
/// The agent could not start it.
struct StartFailed {
  WorkerId worker;
  std::string reason;
};
/// A worker found alive after the head came back. Sent before SetWanted, so that nothing is started beside it.
struct Adopt {
  WorkerId worker;
  NodeId node;
};
/// A worker that has ended while the head was away: its name goes on with the next incarnation.
struct Known {
  WorkerId worker;
};
using Event = std::variant<NodeJoined, NodeLost, NodeDraining, SetWanted, Registered, Serving, Heard, Worked, LinkDown, Unfit,
                           Empty, Exited, StartFailed, Adopt, Known, Wake>;

struct StartWorker {
  WorkerId worker;
  NodeId node;
};
/// Ask it to finish or hand back until `deadline`.
struct DrainWorker {
  WorkerId worker;
  TimePoint deadline;
};
/// Ask the (empty) worker to exit.
struct StopWorker {
  WorkerId worker;
};
/// The agent kills the process, then reports Exited. Repeated until confirmed.
struct KillWorker {
  WorkerId worker;
  NodeId node;
  std::string reason;
};
/// Not routable for now.
struct Suspected {
  WorkerId worker;
};
struct Cleared {
  WorkerId worker;
};
/// It has left: forget it, re-issue what it owned. `unexpected`: it was neither drained nor scaled away.
struct Gone {
  WorkerId worker;
  std::string reason;
  bool unexpected = false;
};
/// A `scale` that came too late or asks for too much.
struct ScaleRefused {
  SetWanted wanted;
  Error error;
};
/// The role cannot be kept up: the level above decides (the run fails).
struct GiveUp {
  Role role = Role::kRollout;
  std::string reason;
};
using Effect = std::variant<StartWorker, DrainWorker, StopWorker, KillWorker, Suspected, Cleared, Gone, ScaleRefused,
                            GiveUp, Note, ArmTimer>;

} // namespace membership

class Membership {
 public:
  explicit Membership(const MembershipOptions& options) : options_(options) {}
  std::vector<membership::Effect> handle(const membership::Event& event, TimePoint now);

  [[nodiscard]] const std::map<WorkerId, Member>& members() const { return members_; }
  [[nodiscard]] std::uint32_t wanted(Role role) const;
  [[nodiscard]] std::uint64_t generation(Role role) const;
  [[nodiscard]] std::uint32_t count(Role role, MemberState state) const;

 private:
  struct Node {
    bool draining = false;
    bool rollouts_only = false;
  };
  struct Slot {  // one index of a role, kept after its worker is gone
    std::uint32_t next_incarnation = 0;
    std::uint32_t restarts = 0;
    TimePoint not_before{};  // back-off
  };
  struct RoleState {
    explicit RoleState(const RestartOptions& restart) : policy(restart) {}
    std::uint32_t wanted = 0;
    std::uint64_t generation = 0;
    bool given_up = false;
    RestartPolicy policy;
    std::map<std::uint32_t, Slot> slots;
  };

  void on(const membership::NodeJoined& e);
  void on(const membership::NodeLost& e);
  void on(const membership::NodeDraining& e);
  void on(const membership::SetWanted& e);
  void on(const membership::Registered& e);
  void on(const membership::Serving& e);
  void on(const membership::Heard& e);
  void on(const membership::Worked& e);
  void on(const membership::LinkDown& e);
  void on(const membership::Unfit& e);
  void on(const membership::Empty& e);
  void on(const membership::Exited& e);
  void on(const membership::StartFailed& e);
  void on(const membership::Adopt& e);
  void on(const membership::Known& e);
  void on(const Wake& e);

  enum class Blame { kWorker, kNode };
  void check_deadlines();
  void balance(Role name, RoleState& state);
  [[nodiscard]] std::uint32_t target(Role name, const RoleState& state) const;
  void start_missing(Role name, RoleState& state, std::uint32_t missing);
  void drain_surplus(Role name, std::uint32_t surplus);
  void retire(Member& member);
  void kill(Member& member, const std::string& reason);
  void send_kill(Member& member, const std::string& reason);
  void gone(WorkerId id, const std::string& exit, Blame blame);
  void set_state(Member& member, MemberState state);
  void arm();
  [[nodiscard]] Member* find(WorkerId worker);
  [[nodiscard]] RoleState& role(Role name);
  [[nodiscard]] std::optional<NodeId> place(Role name) const;

  MembershipOptions options_;
  std::map<NodeId, Node> nodes_;
  std::map<WorkerId, Member> members_;
  std::map<Role, RoleState> roles_;
  TimePoint now_{};
  std::optional<TimePoint> armed_;
  std::vector<membership::Effect> effects_;
};

} // namespace troupe::protocol
