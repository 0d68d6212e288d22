#include "actors/supervisor/environment_router.h"

#include <caf/send.hpp>

#include <iterator>
#include <utility>

#include "actors/messages/all.h"

namespace troupe::actors {
namespace {

EnvironmentReply refusal(std::uint64_t call, std::string why) {
  EnvironmentReply reply;
  reply.call = call;
  reply.error = {ErrorCode::kUnavailable, std::move(why), ""};
  return reply;
}

} // namespace

void EnvironmentRouter::runner_joined(const std::string& name, caf::actor runner) { runners_[name] = {std::move(runner)}; }

void EnvironmentRouter::runner_gone(const std::string& name) {
  runners_.erase(name);
  std::map<std::pair<std::string, std::uint32_t>, EnvironmentReplies> answers;
  std::erase_if(open_, [&](const auto& entry) {
    if (entry.second.runner != name) return false;
    EnvironmentReplies& answer = answers[{entry.first.first, entry.second.incarnation}];
    answer.worker = entry.first.first;
    answer.incarnation = entry.second.incarnation;
    answer.replies.push_back(refusal(entry.first.second, name + " died"));
    return true;
  });
  for (auto& [key, answer] : answers) reply_(std::move(answer));
}

void EnvironmentRouter::ask(const EnvironmentCalls& calls) {
  if (runners_.empty()) {
    EnvironmentReplies answer{calls.worker, calls.incarnation, {}};
    for (const EnvironmentCall& call : calls.calls) answer.replies.push_back(refusal(call.call, "no environment runner is up"));
    return reply_(std::move(answer));
  }
  std::map<std::string, EnvironmentCalls> parts;
  for (const EnvironmentCall& call : calls.calls) {
    const auto runner = std::next(runners_.begin(), static_cast<std::ptrdiff_t>(call.episode % runners_.size()));
    EnvironmentCalls& part = parts[runner->first];
    part.worker = calls.worker;
    part.incarnation = calls.incarnation;
    part.calls.push_back(call);
    open_[{calls.worker, call.call}] = {runner->first, calls.incarnation};
  }
  for (auto& [name, part] : parts) caf::anon_send(runners_.at(name).actor, std::move(part));
}

void EnvironmentRouter::answered(EnvironmentReplies replies) {
  // An answer that comes after its runner was given up on was answered already.
  std::erase_if(replies.replies, [&](const EnvironmentReply& reply) { return open_.erase({replies.worker, reply.call}) == 0; });
  if (!replies.replies.empty()) reply_(std::move(replies));
}

void EnvironmentRouter::worker_gone(const std::string& worker) {
  std::erase_if(open_, [&](const auto& entry) { return entry.first.first == worker; });
}

} // namespace troupe::actors
