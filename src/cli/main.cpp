// troupe: the command line.
#include <cstdio>

#include "cli/common.h"
#include "comm/transfer.h"

int main(int argc, char** argv) {
  troupe::comm::skip_memory_hooks();
  using namespace troupe::cli;
  CLI::App app{"troupe: training and RL post-training of language models, played by a company of actors.", "troupe"};
  app.set_version_flag("--version", TROUPE_VERSION);
  app.require_subcommand(1);
  int code = kDone;
  add_run(app, code);
  add_join(app, code);
  add_control(app, code);
  add_config(app, code);
  add_checkpoint(app, code);
  add_worker(app, code);
  add_bench(app, code);
  add_inspect(app, code);
  add_model_commands(app, code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kDone : kUsage;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "troupe: error: %s\n", e.what());
    return kRunFailed;
  }
  return code;
}
