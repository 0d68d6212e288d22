#include "actors/node/join.h"

#include <caf/all.hpp>
#include <unistd.h>

#include "actors/messages/all.h"
#include "actors/node/node_agent.h"
#include "actors/runtime/network.h"
#include "actors/runtime/signals.h"
#include "actors/runtime/system.h"
#include "base/file.h"
#include "base/log.h"

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;
constexpr auto kAnswerWithin = std::chrono::seconds(5);

Result<NodeAdmitted> ask(const JoinOptions& options, const Credential& credential) {
  TROUPE_TRY_STATUS(try_credential(credential, options.head, kAnswerWithin));
  SystemOptions system_options;
  system_options.credential = credential;
  System system(system_options);
  TROUPE_TRY(const caf::actor head, system.connect(options.head.host, options.head.port));
  JoinRun request;
  request.host = host_name();
  request.pid = static_cast<std::int32_t>(::getpid());
  TROUPE_TRY(request.address, address_towards(options.head.host));
  Result<NodeAdmitted> answer = fail(ErrorCode::kTimeout, "the head at " + to_string(options.head) + " did not answer");
  caf::scoped_actor self{system.caf()};
  self->request(head, kAnswerWithin, request)
      .receive([&](NodeAdmitted& admitted) { answer = std::move(admitted); },
               [&](const caf::error& error) { answer = fail(ErrorCode::kUnavailable, "the head at " + to_string(options.head) + " did not answer: " + caf::to_string(error)); });
  if (answer && !answer->ok) return fail(ErrorCode::kUnavailable, "the head at " + to_string(options.head) + " does not take this machine: " + answer->reason);
  return answer;
}

Result<WorkerFrame> make_frame(const JoinOptions& options, const Credential& credential, const NodeAdmitted& admitted) {
  TROUPE_TRY(WorkerFrame frame, decode_frame(admitted.frame));
  const fs::path folder = fs::absolute(options.folder) / (fs::path(frame.run_folder).filename().string() + "." + admitted.node);
  TROUPE_TRY_STATUS(make_folders(folder / "logs"));
  frame.run_folder = folder.string();
  frame.name = frame.node = admitted.node;
  frame.role = "node";
  frame.credential = credential;
  frame.head_host = options.head.host;
  frame.head_port = options.head.port;
  frame.joined = true;
  TROUPE_TRY(const std::string address, address_towards(options.head.host));
  TROUPE_TRY(frame.bulk_device, interface_of(address));
  TROUPE_TRY(const std::string digest, options.prepare(frame));
  if (digest != admitted.tokenizer)
    return fail(ErrorCode::kInvalidArgument, "the tokenizer made here (" + digest + ") is not the run's (" + admitted.tokenizer +
                                                 "): are the files that the config names the same on both machines?");
  return frame;
}

} // namespace

Status run_join(const JoinOptions& options) {
  block_signals();
  TROUPE_TRY(const Credential credential, read_credential(options.credential));
  for (;;) {
    TROUPE_TRY(const NodeAdmitted admitted, ask(options, credential));
    TROUPE_TRY(const WorkerFrame frame, make_frame(options, credential, admitted));
    set_log_name(frame.name);
    options.say("joined as " + admitted.node + "; logs: " + frame.run_folder + "/logs");
    const Status served = run_node_agent(frame);
    if (served || served.error().code != ErrorCode::kFenced) return served;
    options.say("the head gave " + admitted.node + " up (" + served.error().message + "); joining anew");
  }
}

} // namespace troupe::actors
