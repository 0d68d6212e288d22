// troupe join: this machine plays in a run of another one.
#include <cstdio>
#include <filesystem>

#include "actors/node/join.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "cli/casting.h"
#include "cli/common.h"
#include "cli/experiment/load.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

struct JoinArguments {
  std::string head, credential, folder = "runs";
  bool json = false;
};

// The workers here find in the node's folder what those of the head's machine find in the run's.
Result<std::string> prepare(const actors::WorkerFrame& frame) {
  TROUPE_TRY(const auto document, parse_json(frame.experiment, "the run's experiment"));
  TROUPE_TRY(const auto experiment, experiment::experiment_from_json(document));
  std::error_code ec;
  if (!experiment.model.path.empty() && !fs::exists(experiment.model.path, ec))
    return fail(ErrorCode::kNotFound, "the run's model " + experiment.model.path + " is not on this machine; copy it to the same path");
  TROUPE_TRY(const auto tokenizer, make_tokenizer(experiment));
  const fs::path folder = fs::path(frame.run_folder) / "tokenizer";
  TROUPE_TRY_STATUS(save_tokenizer(experiment, tokenizer, folder));
  TROUPE_TRY(const auto text, read_file(folder / "tokenizer.json"));
  return hex64(hash64(text));
}

int join(const JoinArguments& args) {
  const auto head = parse_endpoint(args.head);
  if (!head) return report(head.error(), args.json, kUsage);
  actors::JoinOptions options;
  options.head = *head;
  options.credential = args.credential;
  options.folder = args.folder;
  options.prepare = prepare;
  options.say = [](const std::string& line) { std::fprintf(stderr, "troupe: %s\n", line.c_str()); };
  const auto served = actors::run_join(options);
  if (served) return kDone;
  return report(served.error(), args.json, served.error().code == ErrorCode::kCancelled ? kInterruptedTwice : kRunFailed);
}

} // namespace

void add_join(CLI::App& app, int& code) {
  auto args = std::make_shared<JoinArguments>();
  auto* command = app.add_subcommand("join", "Lend this machine to a run: its head (`troupe supervise --listen`) prints the line");
  command->add_option("head", args->head, "Where the head listens")->type_name("HOST:PORT")->required();
  command->add_option("--credential", args->credential, "The run's join.pem, copied from the head node")->type_name("FILE")->required();
  command->add_option("--dir", args->folder, "Where this node keeps its logs: <dir>/<run>.<node>")->type_name("DIR");
  command->add_flag("--json", args->json, "Errors as JSON");
  command->callback([args, &code] { code = join(*args); });
}

} // namespace troupe::cli
