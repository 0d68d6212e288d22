/// @file
/// Shared by the head's source files.
#pragma once

#include <caf/send.hpp>

#include <chrono>
#include <utility>
#include <variant>
#include <vector>

#include "actors/supervisor/head.h"

namespace troupe::actors {

inline TimePoint head_now() { return std::chrono::steady_clock::now(); }

template <class Effect>
void Head::perform_all(const std::vector<Effect>& effects, Timer timer) {
  for (const Effect& effect : effects) {
    std::visit(
        [this, timer](const auto& e) {
          using E = std::decay_t<decltype(e)>;
          if constexpr (std::is_same_v<E, protocol::Note>) note(e);
          else if constexpr (std::is_same_v<E, protocol::ArmTimer>) arm(timer, e.at);
          else perform(e);
        },
        effect);
  }
}

template <class Message>
void Head::send(const protocol::WorkerId& id, Message&& message) {
  if (WorkerEntry* worker = entry(id)) caf::anon_send(worker->actor, std::forward<Message>(message));
}

template <class Message>
void Head::send_rank(Message&& message) {
  if (const auto rank = workers_.find("rank/0"); rank != workers_.end()) caf::anon_send(rank->second.actor, std::forward<Message>(message));
}

template <class Message>
void Head::send_ranks(const Message& message) {
  for (const auto& [name, worker] : workers_)
    if (worker.id.role == protocol::Role::kRank && worker.id.index < mesh_.ranks()) caf::anon_send(worker.actor, message);
}

} // namespace troupe::actors
