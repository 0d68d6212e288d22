// Subcommands that are other programs of this build: bench, and what needs LibTorch.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cli/common.h"

namespace troupe::cli {
namespace {

// `program` lies beside this one where it was built.
int become(const std::string& program, std::vector<std::string> arguments, const std::string& otherwise) {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / program;
  arguments.insert(arguments.begin(), path.string());
  std::vector<char*> argv;
  for (std::string& text : arguments) argv.push_back(text.data());
  argv.push_back(nullptr);
  ::execv(path.c_str(), argv.data());
  return report({ErrorCode::kNotFound, "cannot start " + path.string() + " (" + std::strerror(errno) + "); " + otherwise, ""}, false, kRunFailed);
}

CLI::App* add_other(CLI::App& app, const char* name, const char* what) {
  auto* command = app.add_subcommand(name, what);
  command->prefix_command();
  command->set_help_flag();
  return command;
}

} // namespace

void add_bench(CLI::App& app, int& code) {
  auto* command = add_other(app, "bench", "Measure this build: bench list, bench NAME... [--json] [--peers]");
  command->callback([command, &code] { code = become("troupe-bench", command->remaining(), "./troupe bench of a checkout builds it"); });
}

void add_model_commands(CLI::App& app, int& code) {
  for (const auto& [name, what] : {std::pair("chat", "Talk to a model on this terminal: chat DIR"), std::pair("serve", "Serve a model over HTTP as OpenAI's API: serve DIR")}) {
    auto* command = add_other(app, name, what);
    command->callback([command, name = std::string(name), &code] {
      std::vector<std::string> arguments = command->remaining();
      arguments.insert(arguments.begin(), name);
      code = become("troupe-worker", std::move(arguments), "this build is without LibTorch");
    });
  }
}

} // namespace troupe::cli
