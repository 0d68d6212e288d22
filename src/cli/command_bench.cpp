// troupe bench: becomes troupe-bench, which lies beside this program where it was built.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cli/common.h"

namespace troupe::cli {
namespace {

int become_bench(const std::vector<std::string>& arguments) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "troupe-bench";
  std::vector<std::string> texts{program.string()};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  const std::string why = "cannot start " + program.string() + " (" + std::strerror(errno) + "); ./troupe bench of a checkout builds it";
  return report({ErrorCode::kNotFound, why, ""}, false, kRunFailed);
}

} // namespace

void add_bench(CLI::App& app, int& code) {
  auto* command = app.add_subcommand("bench", "Measure this build: bench list, bench NAME... [--json] [--peers]");
  command->prefix_command();
  command->set_help_flag();
  command->callback([command, &code] { code = become_bench(command->remaining()); });
}

} // namespace troupe::cli
