// The processes of a run that need no LibTorch, as hidden subcommands of the one executable.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "actors/checkpoint_writer/writer_actor.h"
#include "actors/node/node_agent.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/casting.h"
#include "cli/common.h"
#include "cli/experiment/load.h"

namespace troupe::cli {
namespace {

Status run_node() {
  TROUPE_TRY(const auto frame, actors::read_frame());
  set_log_name(frame.name);
  return actors::run_node_agent(frame);
}

Status run_role() {
  TROUPE_TRY(const auto frame, actors::read_frame());
  TROUPE_TRY(const auto document, parse_json(frame.experiment, "the experiment of the start frame"));
  TROUPE_TRY(const auto experiment, experiment::experiment_from_json(document));
  if (frame.role == "environment") {
    const auto options = environment_options(experiment);
    return actors::run_environment(frame, options);
  }
  if (frame.role == "checkpoint_writer") return actors::run_checkpoint_writer(frame, std::filesystem::path(frame.run_folder) / "checkpoints");
  return fail(ErrorCode::kInvalidArgument, "troupe worker plays environment and checkpoint_writer, not \"" + frame.role + "\"");
}

} // namespace

void add_worker(CLI::App& app, int& code) {
  const auto finish = [&code](const Status& done) {
    code = done ? kDone : kRunFailed;
    if (!done) std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
  };
  app.add_subcommand("node", "")->group("")->callback([finish] { finish(run_node()); });
  auto* worker = app.add_subcommand("worker", "")->group("");
  worker->allow_extras();
  worker->callback([finish] { finish(run_role()); });
}

} // namespace troupe::cli
