// troupe-worker: the processes that compute. Started by the node agent, told everything on descriptor 3.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "actors/policy/policy.h"
#include "actors/rank/rank_actor.h"
#include "actors/rollout/rollout_actor.h"
#include "base/json.h"
#include "cli/casting_worker.h"
#include "cli/experiment/load.h"
#include "cli/model_main.h"
#include "comm/transfer.h"

namespace {

using namespace troupe;

Status run(std::string_view mode) {
  TROUPE_TRY(const auto frame, actors::read_frame());
  TROUPE_TRY(const auto document, parse_json(frame.experiment, "the experiment of the start frame"));
  TROUPE_TRY(const auto experiment, experiment::experiment_from_json(document));
  // `check`: loads the policy once before a run starts, so that a broken model is one sentence and not a failed run.
  if (mode == "check") return actors::load_policy(cli::rank_options(experiment, frame).policy, true).map([](const auto&) {});
  if (frame.role == "rank") {
    const auto options = cli::rank_options(experiment, frame);
    return actors::run_rank(frame, options);
  }
  if (frame.role == "rollout") {
    const auto options = cli::rollout_options(experiment, frame);
    return actors::run_rollout(frame, options);
  }
  return fail(ErrorCode::kInvalidArgument, "troupe-worker plays rank and rollout, not \"" + frame.role + "\"");
}

} // namespace

int main(int argc, char** argv) {
  troupe::comm::skip_memory_hooks();
  try {
    const std::string_view mode = argc > 1 ? argv[1] : "";
    if (mode == "serve") return cli::serve_main(argc - 1, argv + 1);
    if (mode == "chat") return cli::chat_main(argc - 1, argv + 1);
    const auto done = run(mode);
    if (done) return 0;
    std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "unexpected: %s\n", e.what());
  }
  return 1;
}
